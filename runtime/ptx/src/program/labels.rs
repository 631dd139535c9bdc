//! The labels of a function, and the jumps to them.

use super::error::LowerError;
use crate::exec::code::Code;
use std::collections::HashMap;

/// The open scopes of a function, the innermost last.
#[derive(Default)]
pub(super) struct Labels<'m> {
    scopes: Vec<Scope<'m>>,
}

#[derive(Default)]
struct Scope<'m> {
    /// The op behind each label.
    places: HashMap<&'m str, u32>,
    /// Lists of labels, by their names.
    lists: HashMap<&'m str, &'m [&'m str]>,
    /// The jumps to a label that is not known yet, and those to one label of a list.
    jumps: Vec<Jump<'m>>,
    listed: Vec<Jump<'m>>,
}

#[derive(Clone, Copy)]
struct Jump<'m> {
    /// The place of the op.
    at: usize,
    to: &'m str,
    line: u32,
}

impl<'m> Labels<'m> {
    pub(super) fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    /// Adds a label of the innermost scope.
    pub(super) fn add(&mut self, label: &'m str, place: u32) {
        self.last().places.insert(label, place);
    }

    /// Adds a list of labels to the innermost scope.
    pub(super) fn add_list(&mut self, name: &'m str, labels: &'m [&'m str]) {
        self.last().lists.insert(name, labels);
    }

    /// Lets the op at a place jump to a label.
    pub(super) fn jump(&mut self, at: usize, label: &'m str, line: u32) {
        self.last().jumps.push(Jump { at, to: label, line });
    }

    /// Lets the op at a place jump to a label of a list.
    pub(super) fn jump_to_one_of(&mut self, at: usize, list: &'m str, line: u32) {
        self.last().listed.push(Jump { at, to: list, line });
    }

    fn last(&mut self) -> &mut Scope<'m> {
        if self.scopes.is_empty() {
            self.open();
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Closes the innermost scope. Writes the targets of its jumps to their ops, and adds to
    /// `found` the ops whose `extra` is the place of an op. Jumps to labels that the scope does not
    /// have belong to the scope around it.
    pub(super) fn close(&mut self, code: &mut Code, found: &mut Vec<usize>) -> Result<(), LowerError> {
        let Some(Scope { places, jumps, lists, listed }) = self.scopes.pop() else { return Ok(()) };
        for jump in jumps {
            match (places.get(jump.to), self.scopes.last_mut()) {
                (Some(place), _) => {
                    code.ops[jump.at].extra = u64::from(*place);
                    found.push(jump.at);
                }
                (None, Some(outer)) => outer.jumps.push(jump),
                (None, None) => return Err(jump.error(format!("there is no label {}", jump.to))),
            }
        }
        for jump in listed {
            match (lists.get(jump.to), self.scopes.last_mut()) {
                (Some(labels), _) => {
                    let targets: Option<Vec<u32>> =
                        labels.iter().map(|label| places.get(label).copied()).collect();
                    let targets = targets
                        .ok_or_else(|| jump.error(format!("a label of the list {} is missing", jump.to)))?;
                    code.ops[jump.at].extra = code.targets.len() as u64;
                    code.targets.push(targets);
                }
                (None, Some(outer)) => outer.listed.push(jump),
                (None, None) => return Err(jump.error(format!("there is no list {}", jump.to))),
            }
        }
        Ok(())
    }
}

impl Jump<'_> {
    fn error(&self, problem: String) -> LowerError {
        LowerError { line: self.line, problem }
    }
}
