//! The meanings of the names in a function.

use crate::exec::op::Row;
use crate::exec::registers::Kind;
use std::collections::HashMap;

/// The meaning of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    Register(Register),
    /// A variable in global or constant memory, by its address.
    Global(u64),
    /// A variable in shared memory, by its offset.
    Shared(u64),
    /// Dynamic shared memory.
    DynamicShared,
    /// A variable in the function's frame, by its offset. `is_param` tells `.param` from `.local`.
    Frame {
        offset: u64,
        is_param: bool,
    },
    /// A parameter of the kernel, by its offset.
    Param(u64),
    /// A function, by its address.
    Function(u64),
}

/// A register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register {
    pub(super) kind: Kind,
    pub(super) row: Row,
}

/// The names of a scope.
#[derive(Debug, Default)]
pub(super) struct Scope<'a> {
    single: HashMap<&'a str, Meaning>,
    /// Registers that were declared together: `%f<59>` is `%f`, with the first one and 59.
    groups: HashMap<&'a str, (Register, u32)>,
}

/// The scopes of a function, from the outermost in.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    scopes: Vec<Scope<'a>>,
}

impl<'a> Names<'a> {
    pub(super) fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    pub(super) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Adds a name to the innermost scope.
    pub(super) fn add(&mut self, name: &'a str, meaning: Meaning) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.single.insert(name, meaning);
        }
    }

    /// Adds registers whose rows follow each other.
    pub(super) fn add_group(&mut self, prefix: &'a str, first: Register, count: u32) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.groups.insert(prefix, (first, count));
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<Meaning> {
        self.scopes.iter().rev().find_map(|scope| {
            scope.single.get(name).copied().or_else(|| scope.in_group(name).map(Meaning::Register))
        })
    }
}

impl Scope<'_> {
    fn in_group(&self, name: &str) -> Option<Register> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        (1..=digits.min(10)).rev().find_map(|digits| {
            let (prefix, number) = name.split_at(name.len() - digits);
            let (first, count) = *self.groups.get(prefix)?;
            let number: u32 = number.parse().ok().filter(|number| *number < count)?;
            // `%f01` is not `%f1`.
            let is_plain = digits == 1 || !name[prefix.len()..].starts_with('0');
            is_plain.then(|| Register { row: first.row + number, ..first })
        })
    }
}
