//! Instructions that access memory, and those that convert addresses.

use crate::exec::access::{Base, Window};
use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Op, Row, Run};
use crate::exec::registers::{Kind, Literal};
use crate::exec::windows;
use crate::exec::{access, atomics, control};
use crate::program::effects::moved;
use crate::program::error::LowerError;
use crate::program::form::{Opcode, kind_of, literal_of};
use crate::program::lower::Lowering;
use crate::program::names::{Meaning, Register};
use crate::text::Operand;

impl<'m> Lowering<'m> {
    /// Returns the window of the state space that an opcode names.
    pub(super) fn window_of(&self, op: &Opcode<'_>) -> Option<Window> {
        op.find(|part| {
            Some(match part.split("::").next().unwrap_or_default() {
                "shared" if part == "shared::cluster" => Window::Cluster,
                "global" | "const" => Window::Global,
                "shared" => Window::Shared,
                "local" => Window::Local,
                "param" if self.this.is_kernel => Window::Param,
                "param" => Window::Frame,
                _ => return None,
            })
        })
    }

    /// Returns an op with the address of a memory operand.
    pub(super) fn address(
        &mut self,
        operand: &'m Operand<'m>,
        window: Option<Window>,
    ) -> Result<Op, LowerError> {
        let Operand::Memory { base, offset } = operand else {
            return Err(self.error("an operand is not an address in brackets"));
        };
        let mut op = Op::new(control::nothing);
        op.window = window.unwrap_or(Window::Generic);
        op.extra = *offset as u64;
        let Some(name) = base else { return Ok(op) };
        let meaning = self.meaning(name)?;
        // A register holds the address that `mov` gave it: see `Lowering::named`.
        if let Meaning::Register(_) = meaning {
            op.window = match op.window {
                Window::Param => Window::Generic,
                Window::Frame => Window::Local,
                other => other,
            };
        }
        match meaning {
            Meaning::Register(Register { kind: Kind::Narrow, row, .. }) => {
                (op.base, op.a) = (Base::Narrow, row);
            }
            Meaning::Register(Register { kind: Kind::Wide, row, .. }) => {
                (op.base, op.a) = (Base::Wide, row);
                // A pointer to a parameter is generic; see `Lowering::named`.
                if op.window == Window::Param {
                    op.window = Window::Generic;
                }
            }
            Meaning::Register(_) => return Err(self.error(format!("{name} is not an address"))),
            Meaning::Global(address) | Meaning::Function(address) => {
                op.extra = address.wrapping_add_signed(*offset);
            }
            // The own variable, whatever window of shared memory the opcode names.
            Meaning::Shared(at) => {
                op.extra = at.wrapping_add_signed(*offset);
                op.window = Window::Shared;
            }
            Meaning::DynamicShared => {
                (op.base, op.a) = (Base::Wide, self.dynamic_shared(Kind::Wide)?);
                op.window = Window::Shared;
            }
            Meaning::Frame { offset: at, .. } => {
                op.extra = at.wrapping_add_signed(*offset);
                op.window = Window::Frame;
            }
            Meaning::Param(at) => {
                op.extra = at.wrapping_add_signed(*offset);
                op.window = Window::Param;
            }
        }
        Ok(op)
    }

    /// Returns a wide row with the addresses of a memory operand, and the window to which they
    /// point.
    pub(super) fn address_row(
        &mut self,
        operand: &'m Operand<'m>,
        window: Option<Window>,
    ) -> Result<(Row, Window), LowerError> {
        let address = self.address(operand, window)?;
        let d = self.temporary(Kind::Wide)?;
        // In shared memory the row holds offsets, which need nothing but the sum.
        let (found, window) = match address.window {
            Window::Global | Window::Shared | Window::Cluster => (address.window, Window::Global),
            other => (Window::Generic, other),
        };
        let sources = field_of_address(&address);
        let fields = Fields { sources, ..Fields::of(Some(Kind::Wide), [None; 4]) };
        self.emit(Op { run: windows::to_generic, d, window, ..address }, Way::Whole, fields);
        Ok((d, found))
    }

    /// Returns the registers of an operand that may be a vector.
    pub(super) fn elements(&self, operand: &'m Operand<'m>) -> Vec<&'m Operand<'m>> {
        match operand {
            Operand::Vector(elements) => elements.iter().collect(),
            one => vec![one],
        }
    }

    /// Returns whether the first named element is a wide register.
    pub(super) fn is_wide(&mut self, elements: &[&'m Operand<'m>], ty: &str) -> Result<bool, LowerError> {
        for element in elements {
            if let Operand::Name(name) = element
                && let Ok(Meaning::Register(register)) = self.meaning(name)
            {
                return Ok(register.kind == Kind::Wide);
            }
        }
        Ok(kind_of(ty) == Some(Kind::Wide))
    }

    pub(super) fn load(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let elements = self.elements(self.operand(operands, 0)?);
        let address = self.address(self.operand(operands, 1)?, self.window_of(op))?;
        let is_wide = self.is_wide(&elements, op.last())?;
        let loops = access::load_of(op.last(), elements.len(), is_wide)
            .ok_or_else(|| self.error(format!("{} is not supported", op.whole)))?;
        let kind = if is_wide { Kind::Wide } else { Kind::Narrow };
        let mut rows = [0; 4];
        for (row, element) in rows.iter_mut().zip(&elements) {
            *row = self.result(element, kind)?;
        }
        if address.window != Window::Param {
            self.this.line.effect = Effect::Load(moved(op, elements.len()));
        }
        let run = loops.at(self.level);
        let op = Op { run, d: rows[0], b: rows[1], c: rows[2], e: rows[3], ..address };
        let end = address.extra.saturating_add(8 * elements.len() as u64);
        // A kernel's parameters do not change.
        if address.window == Window::Param
            && address.base == Base::None
            && elements.len() == 1
            && end <= u64::from(self.code.param_bytes)
        {
            self.emit_pure(op, Way::Whole, kind, &[]);
        } else {
            let results = fields_of_elements(kind, elements.len());
            let fields = Fields { results, sources: field_of_address(&address) };
            self.emit_known(op, Way::Whole, fields);
        }
        Ok(())
    }

    pub(super) fn store(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        let address = self.address(self.operand(operands, 0)?, self.window_of(op))?;
        let elements = self.elements(self.operand(operands, 1)?);
        let is_wide = self.is_wide(&elements, op.last())?;
        let loops = access::store_of(op.last(), elements.len(), is_wide)
            .ok_or_else(|| self.error(format!("{} is not supported", op.whole)))?;
        let kind = if is_wide { Kind::Wide } else { Kind::Narrow };
        let mut rows = [0; 4];
        for (row, element) in rows.iter_mut().zip(&elements) {
            *row = self.source(element, kind, literal_of(op.last()))?;
        }
        if matches!(address.window, Window::Param) {
            return Err(self.error("a kernel cannot store to its parameters"));
        }
        self.this.line.effect = Effect::Store(moved(op, elements.len()), is_wide);
        let run = loops.at(self.level);
        let mut sources = fields_of_elements(kind, elements.len());
        sources[1] = field_of_address(&address)[1];
        let op = Op { run, d: rows[0], b: rows[1], c: rows[2], e: rows[3], ..address };
        self.emit_known(op, Way::Use, Fields { sources, ..Fields::default() });
        Ok(())
    }

    pub(super) fn atomic(&mut self, op: &Opcode<'_>, operands: &'m [Operand<'m>]) -> Result<(), LowerError> {
        const OPERATIONS: [&str; 11] =
            ["exch", "cas", "and", "or", "xor", "add", "inc", "dec", "min", "max", "popc"];
        let operation = op.parts.iter().find(|part| OPERATIONS.contains(part)).copied().unwrap_or_default();
        let (run, is_wide) = atomics::atomic_of(operation, op.last())
            .ok_or_else(|| self.error(format!("{} is not supported", op.whole)))?;
        let gives_old = op.name == "atom";
        let first = usize::from(gives_old);
        let address = self.address(self.operand(operands, first)?, self.window_of(op))?;
        let kind = if is_wide { Kind::Wide } else { Kind::Narrow };
        let literal = literal_of(op.last());
        let b = self.source(self.operand(operands, first + 1)?, kind, literal)?;
        let c = match operation {
            "cas" => self.source(self.operand(operands, first + 2)?, kind, literal)?,
            _ => b,
        };
        let d = if gives_old { self.result(self.operand(operands, 0)?, kind)? } else { 0 };
        self.this.line.effect = Effect::Atomic(moved(op, 1), gives_old);
        let mut fields = Fields::of(gives_old.then_some(kind), [None, Some(kind), Some(kind), None]);
        fields.sources[1] = field_of_address(&address)[1];
        self.emit(Op { run, d, b, c, e: u32::from(gives_old), ..address }, Way::Use, fields);
        Ok(())
    }

    pub(super) fn convert_address(
        &mut self,
        op: &Opcode<'_>,
        operands: &'m [Operand<'m>],
    ) -> Result<(), LowerError> {
        let window = self.window_of(op).unwrap_or(Window::Generic);
        // A pointer to a parameter is generic already; see `Lowering::named`.
        let window = match window {
            Window::Frame => Window::Local,
            Window::Param => Window::Global,
            other => other,
        };
        let to = self.operand(operands, 0)?;
        let kind = kind_of(op.last()).ok_or_else(|| self.error("cvta needs u32 or u64"))?;
        if op.has("to") {
            let a = self.source(self.operand(operands, 1)?, Kind::Wide, Literal::Integer)?;
            let d = self.result(to, kind)?;
            let run: Run = match kind {
                Kind::Narrow => windows::from_generic::<u32>,
                _ => windows::from_generic::<u64>,
            };
            let op = Op { d, a, window, ..Op::new(run) };
            match window {
                Window::Global => self.emit_pure(op, Way::Whole, kind, &[(Kind::Wide, a)]),
                _ => {
                    let fields = Fields::of(Some(kind), [Some(Kind::Wide), None, None, None]);
                    self.emit(op, Way::Whole, fields)
                }
            };
            return Ok(());
        }
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let d = self.result(to, Kind::Wide)?;
        let base = if kind == Kind::Narrow { Base::Narrow } else { Base::Wide };
        let fields = Fields::of(Some(Kind::Wide), [Some(kind), None, None, None]);
        self.emit(Op { d, a, base, window, ..Op::new(windows::to_generic) }, Way::Whole, fields);
        Ok(())
    }

    pub(super) fn is_in_space(
        &mut self,
        op: &Opcode<'_>,
        operands: &'m [Operand<'m>],
    ) -> Result<(), LowerError> {
        let a = self.source(self.operand(operands, 1)?, Kind::Wide, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Predicate)?;
        let window = match self.window_of(op) {
            Some(window) if !op.has("const") => window,
            _ => return Err(self.error(format!("{} is not supported", op.whole))),
        };
        let fields = Fields::of(Some(Kind::Predicate), [Some(Kind::Wide), None, None, None]);
        self.emit(Op { d, a, window, ..Op::new(windows::is_in_window) }, Way::Whole, fields);
        Ok(())
    }
}

/// Returns the fields of the elements that an op loads or stores, of which there are `n`.
fn fields_of_elements(kind: Kind, n: usize) -> [Option<Kind>; 5] {
    let is = |at: usize| (at < n).then_some(kind);
    [is(0), None, is(1), is(2), is(3)]
}

/// Returns the field of the address of an op.
fn field_of_address(op: &Op) -> [Option<Kind>; 5] {
    let kind = match op.base {
        Base::None => None,
        Base::Narrow => Some(Kind::Narrow),
        Base::Wide => Some(Kind::Wide),
    };
    [None, kind, None, None, None]
}
