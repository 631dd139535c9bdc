//! The declarations in PTX text: its version and target, and its entries with their parameters and
//! limits.
//!
//! The text is parsed by `warpline-ptx`, which also has the module's variables and runs its
//! kernels.

use crate::target::{Target, Version};
use std::collections::{BTreeMap, BTreeSet};
use warpline_ptx::text::{self, Function, Linkage, Operand, Space, Statement, Variable};

/// The declarations of a module.
#[derive(Debug, PartialEq)]
pub(crate) struct Ptx {
    pub(crate) version: Version,
    pub(crate) target: Target,
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// A function that can be launched.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    /// Its parameters, in order.
    pub(crate) params: Vec<Slot>,
    /// `.maxntid`: the maximum threads per block, which is the product of its numbers.
    pub(crate) max_threads: Option<u32>,
    /// `.reqntid`: the required threads along each axis of a block.
    pub(crate) threads: Option<[u32; 3]>,
    /// Bytes of the shared variables that its body declares or names.
    pub(crate) shared_bytes: u32,
    /// Bytes of the variables in constant memory that its body names.
    pub(crate) const_bytes: u32,
    /// True if its body does nothing, as in a text that only declares a kernel for its twin.
    pub(crate) is_empty: bool,
}

/// The place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Parses PTX text. The error describes the first part that is not PTX.
pub(crate) fn parse(text: &str) -> Result<Ptx, String> {
    let module = text::parse(text).map_err(|error| error.to_string())?;
    if module.address_size != 64 {
        return Err(format!("the address size is {}, not 64", module.address_size));
    }
    let target = Target::parse(module.target).ok_or("it has no .target that is known")?;
    let sizes = |space: Space| -> Result<BTreeMap<&str, usize>, String> {
        let is_own =
            |variable: &&Variable<'_>| variable.space == space && variable.linkage != Linkage::Extern;
        let own = module.variables.iter().filter(is_own);
        own.map(|variable| Ok((variable.name, bytes_of(variable)?.0))).collect()
    };
    let (shared, constants) = (sizes(Space::Shared)?, sizes(Space::Const)?);
    let mut entries = BTreeMap::new();
    for function in module.functions.iter().filter(|function| function.is_kernel && function.body.is_some()) {
        entries.insert(function.name.to_owned(), entry(function, &shared, &constants)?);
    }
    Ok(Ptx { version: Version(module.version.0, module.version.1), target, entries })
}

/// Returns the size and the alignment of a variable in bytes.
fn bytes_of(variable: &Variable<'_>) -> Result<(usize, usize), String> {
    let element = match variable.ty {
        "b8" | "u8" | "s8" | "pred" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" => 4,
        "b64" | "u64" | "s64" | "f64" | "texref" | "samplerref" | "surfref" => 8,
        "b128" => 16,
        other => return Err(format!("{} has the unknown type .{other}", variable.name)),
    };
    let element = element * variable.vector as usize;
    let count = variable
        .dims
        .iter()
        .try_fold(1, |count: usize, dim| count.checked_mul(dim.unwrap_or(0).try_into().ok()?));
    let bytes = count.and_then(|count| count.checked_mul(element));
    let align = variable.align.map_or(element, |align| align as usize);
    match bytes {
        Some(bytes) if align.is_power_of_two() => Ok((bytes, align)),
        _ => Err(format!("{} has an impossible size or alignment", variable.name)),
    }
}

fn entry(
    function: &Function<'_>,
    shared: &BTreeMap<&str, usize>,
    constants: &BTreeMap<&str, usize>,
) -> Result<Entry, String> {
    let mut entry = Entry::default();
    let mut end = 0usize;
    for param in &function.params {
        let (bytes, align) = bytes_of(param)?;
        let offset = end.next_multiple_of(align);
        entry.params.push(Slot { offset, bytes });
        end = offset + bytes;
    }
    for text::Directive { name: directive, numbers, .. } in &function.directives {
        let axis = |at: usize| numbers.get(at).map_or(1, |number| *number as u32);
        let axes = [axis(0), axis(1), axis(2)];
        match *directive {
            "maxntid" => entry.max_threads = Some(axes.iter().fold(1, |all, axis| all.saturating_mul(*axis))),
            "reqntid" => entry.threads = Some(axes),
            _ => {}
        }
    }
    let does_something = |statement: &Statement<'_>| matches!(statement, Statement::Instruction(instruction) if instruction.opcode != "ret");
    entry.is_empty = !function.body.iter().flatten().any(does_something);
    let (mut bytes, mut named) = (0usize, BTreeSet::new());
    for statement in function.body.iter().flatten() {
        match statement {
            Statement::Variable(variable) if variable.space == Space::Shared => {
                bytes = bytes.saturating_add(bytes_of(variable)?.0);
            }
            Statement::Instruction(instruction) => {
                instruction.operands.iter().for_each(|operand| names(operand, &mut named));
            }
            _ => {}
        }
    }
    let named_of = |sizes: &BTreeMap<&str, usize>, bytes: usize| {
        named.iter().filter_map(|name| sizes.get(name)).fold(bytes, |sum, bytes| sum.saturating_add(*bytes))
            as u32
    };
    entry.shared_bytes = named_of(shared, bytes);
    entry.const_bytes = named_of(constants, 0);
    Ok(entry)
}

/// Adds the names in an operand.
fn names<'a>(operand: &Operand<'a>, named: &mut BTreeSet<&'a str>) {
    match operand {
        Operand::Name(name) | Operand::Offset(name, _) | Operand::Memory { base: Some(name), .. } => {
            named.insert(name);
        }
        Operand::Vector(operands) | Operand::List(operands) => {
            operands.iter().for_each(|operand| names(operand, named));
        }
        Operand::Pair(first, second) => {
            names(first, named);
            names(second, named);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.1\n.target sm_70, debug\n.address_size 64\n";

    fn parsed(body: &str) -> Result<Ptx, String> {
        parse(&format!("//\n// Generated by a compiler\n//\n{HEAD}{body}"))
    }

    #[test]
    fn entries_have_the_sizes_of_their_parameters() {
        let ptx = parsed(
            ".visible .entry saxpy(\n\t.param .f32 saxpy_param_0,\n\t.param .u64 .ptr .global .align 16 saxpy_param_1,\n\
             \t.param .align 8 .b8 saxpy_param_2[24], .param .u16 x)\n.maxntid 256, 1, 1\n.minnctapersm 2\n{\n\t.reg .f32 \t%f<5>;\n\
             \t{ .reg .b16 t; }\n\t@%p1 bra $L__BB0_2;\n\tret;\n}\n.entry none()\n{ ret; }\n.entry bare { ret; }",
        )
        .unwrap();
        let places = ptx.entries["saxpy"].params.iter().map(|place| (place.offset, place.bytes));
        assert_eq!(places.collect::<Vec<_>>(), [(0, 4), (8, 8), (16, 24), (40, 2)]);
        assert_eq!((ptx.entries["saxpy"].max_threads, ptx.entries["saxpy"].threads), (Some(256), None));
        assert_eq!(ptx.entries["none"].params, []);
        assert_eq!(ptx.entries["bare"].params, []);
    }

    #[test]
    fn the_head_says_which_drivers_and_devices_take_the_text() {
        let ptx = parsed("").unwrap();
        assert_eq!((ptx.version, ptx.target), (Version(8, 1), Target::parse("sm_70").unwrap()));
    }

    #[test]
    fn limits_and_shared_variables_belong_to_their_entries() {
        let ptx = parsed(
            ".const .b64 unused[2]; .const .align 4 .b8 table[80];\n\
             .shared .align 4 .b8 of_the_module[400];\n.extern .shared .align 16 .b8 dynamic[];\n\
             .visible .entry a()\n.reqntid 32, 2\n{\n\t.shared .align 8 .f64 own[4];\n\t{ .shared .u32 one; }\n\
             \tmov.u32 %r1, dynamic; ld.shared.u32 %r2, [own];\n}\n\
             .visible .entry b()\n.maxntid 1024\n{ ld.const.u32 %r3, [table]; mov.u32 %r1, of_the_module; mov.u32 %r2, of_the_module; }",
        )
        .unwrap();
        let (a, b) = (&ptx.entries["a"], &ptx.entries["b"]);
        assert_eq!((a.threads, a.max_threads, a.shared_bytes), (Some([32, 2, 1]), None, 36));
        assert_eq!((b.threads, b.max_threads, b.shared_bytes), (None, Some(1024), 400));
        assert_eq!((a.const_bytes, b.const_bytes), (0, 80));
    }

    #[test]
    fn functions_and_declarations_are_no_entries() {
        let ptx = parsed(
            ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;\n\
             .func (.reg .u32 r) twice(.reg .u32 x) { add.u32 r, x, x; ret; }\n\
             .extern .shared .align 16 .b8 smem[];\n.visible .entry k() { /* } */ ret; }",
        )
        .unwrap();
        assert_eq!(ptx.entries.keys().collect::<Vec<_>>(), ["k"]);
    }

    #[test]
    fn what_is_not_ptx_is_refused() {
        for text in [
            "",
            "hello",
            ".version",
            ".version eight\n.target sm_70\n",
            ".version 8.1\n",
            ".version 8.1\n.target volta\n",
            ".version 8.1\n.target sm_70\nhello",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        for body in [
            ".entry k(",
            ".entry k(.param .u33 a) { ret; }",
            ".entry k(.param .u32 a .param .u32 b) { ret; }",
            ".entry k() { ret;",
            ".entry () { }",
            ".global .u32 x = y z;",
            ".global .u32 x",
            "/* never closed",
        ] {
            assert!(parsed(body).is_err(), "{body:?}");
        }
    }
}
