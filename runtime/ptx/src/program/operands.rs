//! From the operands of an instruction to rows.

use super::error::LowerError;
use super::form::Opcode;
use super::integers;
use super::lower::{Lowering, address_of};
use super::names::Meaning;
use super::variables::{bits_of, layout_of};
use crate::exec::access::{Base, Window};
use crate::exec::dependence::{Fields, Way};
use crate::exec::op::{Op, Row};
use crate::exec::registers::{Kind, Literal};
use crate::exec::select;
use crate::exec::special::{self, Special, Uniform};
use crate::exec::windows;
use crate::text::{Linkage, Number, Operand, Space, Variable};

impl<'m> Lowering<'m> {
    /// Returns what a name means.
    pub(super) fn meaning(&mut self, name: &str) -> Result<Meaning, LowerError> {
        if let Some(meaning) = self.this.names.find(name) {
            return Ok(meaning);
        }
        if let Some(offset) = self.shared.get(name) {
            return Ok(Meaning::Shared(*offset));
        }
        if let Some((address, _)) = self.variables.find(name) {
            return Ok(Meaning::Global(address));
        }
        let module = self.module;
        let shared = |variable: &&Variable<'_>| variable.name == name && variable.space == Space::Shared;
        if let Some(variable) = module.variables.iter().find(shared) {
            if variable.linkage == Linkage::Extern {
                self.dynamic_align = self.dynamic_align.max(layout_of(variable)?.1);
                return Ok(Meaning::DynamicShared);
            }
            let offset = self.shared_variable(variable)?;
            self.shared.insert(variable.name, offset);
            return Ok(Meaning::Shared(offset));
        }
        if let Some(address) = address_of(module, name) {
            let number = self.number_of(name);
            self.addressed.extend(number);
            if let Some(number) = number
                && !self.code.numbers.contains(&(address, number))
            {
                self.code.numbers.push((address, number));
            }
            return Ok(Meaning::Function(address));
        }
        let external = module.variables.iter().any(|variable| variable.name == name);
        Err(self.error(match external {
            true => format!("{name} is defined in another module; link the modules"),
            false => format!("there is no {name}"),
        }))
    }

    /// Returns a row with the offset of dynamic shared memory, which `finish` decides.
    pub(super) fn dynamic_shared(&mut self, kind: Kind) -> Result<Row, LowerError> {
        if let Some((_, row)) = self.dynamic_rows.iter().find(|(known, _)| *known == kind) {
            return Ok(*row);
        }
        let row = self.temporary(kind)?;
        self.dynamic_rows.push((kind, row));
        Ok(row)
    }

    /// Returns the row of a register of a kind.
    pub(super) fn register(&mut self, name: &str, kind: Kind) -> Result<Row, LowerError> {
        match self.meaning(name)? {
            Meaning::Register(register) if register.kind == kind => Ok(register.row),
            Meaning::Register(_) => Err(self.error(format!("{name} has the wrong size for this operand"))),
            _ => Err(self.error(format!("{name} is not a register"))),
        }
    }

    /// Returns a row that holds a constant.
    pub(super) fn constant(&mut self, kind: Kind, bits: u64) -> Result<Row, LowerError> {
        match kind {
            Kind::Narrow => {
                let bits = bits as u32;
                if let Some(row) = self.narrow_constants.get(&bits) {
                    return Ok(*row);
                }
                let row = self.temporary(kind)?;
                self.narrow_constants.insert(bits, row);
                self.code.narrow_constants.push((row, bits));
                Ok(row)
            }
            Kind::Wide => {
                if let Some(row) = self.wide_constants.get(&bits) {
                    return Ok(*row);
                }
                let row = self.temporary(kind)?;
                self.wide_constants.insert(bits, row);
                self.code.wide_constants.push((row, bits));
                Ok(row)
            }
            Kind::Predicate => {
                let row = self.temporary(kind)?;
                let op = Op { d: row, extra: bits, ..Op::new(select::set_predicate) };
                self.emit(op, Way::Whole, Fields::of(Some(kind), [None; 4]));
                Ok(row)
            }
        }
    }

    /// Returns the row of a source, of a constant or of an address.
    pub(super) fn source(
        &mut self,
        operand: &'m Operand<'m>,
        kind: Kind,
        literal: Literal,
    ) -> Result<Row, LowerError> {
        match operand {
            Operand::Number(number) => self.constant(kind, constant_bits(*number, kind, literal)),
            Operand::Name(name) => self.named(name, 0, kind),
            Operand::Offset(name, offset) => self.named(name, *offset, kind),
            _ => Err(self.error("an operand is not a register or a number")),
        }
    }

    /// Returns a row that holds what a name means, plus an offset.
    fn named(&mut self, name: &str, offset: i64, kind: Kind) -> Result<Row, LowerError> {
        if name.starts_with('%')
            && self.this.names.find(name).is_none()
            && let Some(row) = self.special(name, kind)?
        {
            return Ok(row);
        }
        let op = match self.meaning(name)? {
            Meaning::Register(register) if register.kind == kind && offset == 0 => return Ok(register.row),
            Meaning::Register(_) => {
                return Err(self.error(format!("{name} has the wrong size for this operand")));
            }
            Meaning::Global(address) | Meaning::Function(address) => {
                return self.constant(kind, address.wrapping_add_signed(offset));
            }
            Meaning::Shared(at) => return self.constant(kind, at.wrapping_add_signed(offset)),
            Meaning::DynamicShared if offset == 0 => return self.dynamic_shared(kind),
            Meaning::DynamicShared => {
                let a = self.dynamic_shared(kind)?;
                let b = self.constant(kind, offset as u64)?;
                let d = self.temporary(kind)?;
                let form = integers::form(&Opcode::of(match kind {
                    Kind::Narrow => "add.u32",
                    _ => "add.u64",
                }));
                let run = form.ok_or_else(|| self.error("an address cannot be formed"))?.loops.at(self.level);
                let fields = Fields::of(Some(kind), [Some(kind), Some(kind), None, None]);
                self.emit(Op { d, a, b, ..Op::new(run) }, Way::Whole, fields);
                return Ok(d);
            }
            Meaning::Frame { offset: at, .. } => {
                let run = match kind {
                    Kind::Narrow => windows::frame_offset::<u32>,
                    _ => windows::frame_offset::<u64>,
                };
                Op { extra: at.wrapping_add_signed(offset), ..Op::new(run) }
            }
            // A generic address: PTX that forms one converts it back, which changes nothing.
            Meaning::Param(at) => Op {
                extra: at.wrapping_add_signed(offset),
                window: Window::Param,
                base: Base::None,
                ..Op::new(windows::to_generic)
            },
        };
        let d = self.temporary(kind)?;
        self.emit(Op { d, ..op }, Way::Whole, Fields::of(Some(kind), [None; 4]));
        Ok(d)
    }

    /// Reads a special register into a new row.
    fn special(&mut self, name: &str, kind: Kind) -> Result<Option<Row>, LowerError> {
        if name == "%is_explicit_cluster" && kind == Kind::Predicate {
            let d = self.temporary(kind)?;
            let op = Op { d, ..Op::new(special::read_is_explicit_cluster) };
            self.emit_uniform(op, kind, &[], Uniform::Launch);
            return Ok(Some(d));
        }
        let Some(register) = Special::of(name).filter(|_| kind != Kind::Predicate) else { return Ok(None) };
        let d = self.temporary(kind)?;
        match kind {
            Kind::Wide if register == Special::Clock => {
                let fields = Fields::of(Some(kind), [None; 4]);
                self.emit(Op { d, ..Op::new(special::read_clock) }, Way::Whole, fields);
            }
            Kind::Wide => {
                let a = self.temporary(Kind::Narrow)?;
                self.emit_special(a, register);
                let op = Op { d, a, b: 32, ..Op::new(select::extend) };
                self.emit_pure(op, Way::Whole, kind, &[(Kind::Narrow, a)]);
            }
            _ => self.emit_special(d, register),
        }
        Ok(Some(d))
    }

    /// Adds the op that reads a special register into a narrow row.
    fn emit_special(&mut self, d: Row, register: Special) {
        self.code.needs_workspace |= register == Special::WorkspaceLow;
        let op = Op { d, extra: register as u64, ..Op::new(special::read) };
        match register.uniform() {
            Some(uniform) => self.emit_uniform(op, Kind::Narrow, &[], uniform),
            None => self.emit(op, Way::Whole, Fields::of(Some(Kind::Narrow), [None; 4])),
        };
    }

    /// Returns the row of a result. `_` gets a row that nothing reads.
    pub(super) fn result(&mut self, operand: &Operand<'_>, kind: Kind) -> Result<Row, LowerError> {
        match operand {
            Operand::Name(name) => {
                let row = self.register(name, kind)?;
                self.early.note_result(kind, row);
                Ok(row)
            }
            Operand::Nothing => self.temporary(kind),
            _ => Err(self.error("a result is not a register")),
        }
    }
}

/// Returns the bits of a number as a constant of a row.
fn constant_bits(number: Number, kind: Kind, literal: Literal) -> u64 {
    let ty = match (literal, kind) {
        (Literal::F32, _) => "f32",
        (Literal::F64, _) => "f64",
        (Literal::Integer, Kind::Wide) => "b64",
        (Literal::Integer, _) => "b32",
    };
    match (number, literal) {
        // An integer as an operand of a float stands for its value; `mov.f32` has floats alone.
        (Number::F64(bits), Literal::Integer) if kind == Kind::Narrow => {
            u64::from((f64::from_bits(bits) as f32).to_bits())
        }
        _ => bits_of(number, ty),
    }
}
