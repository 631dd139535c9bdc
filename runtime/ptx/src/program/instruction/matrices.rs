//! Instructions on matrices that a warp holds together. PTX ISA 9.7.14.

use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::matrix::{self, Element, Fragment, Matrix, Spread};
use crate::exec::op::{Op, Row, Run};
use crate::exec::registers::{Kind, Literal};
use crate::exec::vote::Form;
use crate::program::error::LowerError;
use crate::program::form::Opcode;
use crate::program::lower::Lowering;
use crate::text::{Instruction, Operand};

/// The rows of the factor A, the columns of B, and the columns of A: `m16n8k8`.
type Shape = [usize; 3];

fn shape_of(part: &str) -> Option<Shape> {
    let shapes: &[(&str, Shape)] = &[
        ("m8n8k4", [8, 8, 4]),
        ("m8n8k16", [8, 8, 16]),
        ("m16n8k4", [16, 8, 4]),
        ("m16n8k8", [16, 8, 8]),
        ("m16n8k16", [16, 8, 16]),
        ("m16n8k32", [16, 8, 32]),
        ("m16n16k8", [16, 16, 8]),
        ("m16n16k16", [16, 16, 16]),
        ("m8n32k16", [8, 32, 16]),
        ("m32n8k16", [32, 8, 16]),
    ];
    shapes.iter().find(|(name, _)| *name == part).map(|(_, shape)| *shape)
}

/// Returns whether an instruction multiplies matrices of this shape. PTX ISA 9.7.14.1.
fn has_shape(is_wmma: bool, factor: Element, shape: Shape) -> bool {
    let shapes: &[Shape] = match (is_wmma, factor) {
        (false, Element::F16 | Element::Bf16) => &[[16, 8, 8], [16, 8, 16]],
        (false, Element::Tf32) => &[[16, 8, 4], [16, 8, 8]],
        (false, Element::S8 | Element::U8) => &[[8, 8, 16], [16, 8, 16], [16, 8, 32]],
        (false, Element::F64) => &[[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]],
        (true, Element::F16 | Element::Bf16 | Element::S8 | Element::U8) => {
            &[[16, 16, 16], [8, 32, 16], [32, 8, 16]]
        }
        (true, Element::Tf32) => &[[16, 16, 8]],
        (true, Element::F64) => &[[8, 8, 4]],
        _ => &[],
    };
    shapes.contains(&shape)
}

impl<'m> Lowering<'m> {
    pub(super) fn matrix(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        match (op.name, op.parts.first().copied()) {
            ("ldmatrix" | "stmatrix", _) => self.matrix_rows(op, instruction),
            ("wmma", Some("load" | "store")) => self.matrix_in_memory(op, instruction),
            ("mma", _) | ("wmma", Some("mma")) => self.multiply(op, instruction),
            _ => Err(self.refused(instruction)),
        }
    }

    /// Adds an op for an instruction on matrices, in which all lanes of the warp take part.
    fn emit_matrix(&mut self, matrix: Matrix, is_load: bool, op: Op) -> Result<(), LowerError> {
        let address = (!matches!(matrix, Matrix::Multiply { .. })).then_some(Kind::Wide);
        let fields = Fields::of(None, [address, None, None, None]);
        let extra = self.code.matrices.len() as u64;
        self.code.matrices.push(matrix);
        let e = self.constant(Kind::Narrow, u32::MAX.into())?;
        self.this.line.effect = Effect::Meet(Form::Matrix);
        self.emit(Op { e, extra, ..op }, Way::Matrix { is_load }, fields);
        Ok(())
    }

    /// Returns the types of D, A, B and C, of which `wmma` with halves names those of D and C
    /// alone.
    fn types(&self, op: &Opcode<'_>) -> Option<[Element; 4]> {
        let types: Vec<Element> = op.parts.iter().filter_map(|part| Element::of(part)).collect();
        match types[..] {
            [d, a, b, c] => Some([d, a, b, c]),
            [d, c] if op.name == "wmma" => Some([d, Element::F16, Element::F16, c]),
            _ => None,
        }
    }

    /// `mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c;` and
    /// `wmma.mma.sync.aligned.alayout.blayout.shape.…`, whose layouts matter to its loads alone.
    fn multiply(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let (Some([m, n, k]), Some([d, a, b, c])) = (op.find(shape_of), self.types(op)) else {
            return Err(self.refused(instruction));
        };
        let is_wmma = op.name == "wmma";
        let is_known = match (a, b) {
            (Element::F16, Element::F16) => {
                (is_wmma || n == 8 && m == 16) && d == c && matches!(d, Element::F16 | Element::F32)
                    || is_wmma
                        && matches!((d, c), (Element::F16, Element::F32) | (Element::F32, Element::F16))
            }
            (Element::Bf16, Element::Bf16) | (Element::Tf32, Element::Tf32) => {
                (d, c) == (Element::F32, Element::F32)
            }
            (Element::S8 | Element::U8, Element::S8 | Element::U8) => (d, c) == (Element::S32, Element::S32),
            (Element::F64, Element::F64) => (d, c) == (Element::F64, Element::F64),
            _ => false,
        };
        // PTX ISA 9.7.14.5: these layouts alone; `.xor` and sparse forms are other instructions.
        let is_plain = is_wmma || op.has("row") && op.has("col");
        let is_other =
            ["xor", "and", "sp", "sp::ordered_metadata", "block_scale"].iter().any(|part| op.has(part));
        let is_known = is_known && has_shape(is_wmma, a, [m, n, k]);
        if !is_known || !is_plain || is_other {
            return Err(self.refused(instruction));
        }
        let operands = &instruction.operands;
        let place = |place: Spread| if is_wmma { Spread::Repeated } else { place };
        let fragment = |element, rows, columns, at| Fragment {
            element,
            rows,
            columns,
            place: place(at),
            registers: Vec::new(),
        };
        let mut d = fragment(d, m, n, Spread::Sum);
        let mut a = fragment(a, m, k, Spread::A);
        let mut b = fragment(b, k, n, Spread::B);
        let mut c = fragment(c, m, n, Spread::Sum);
        self.fill(&mut a, self.operand(operands, 1)?, false)?;
        self.fill(&mut b, self.operand(operands, 2)?, false)?;
        self.fill(&mut c, self.operand(operands, 3)?, false)?;
        self.fill(&mut d, self.operand(operands, 0)?, true)?;
        let is_saturated = op.has("satfinite");
        self.emit_matrix(Matrix::Multiply { d, a, b, c, is_saturated }, false, Op::new(matrix::multiply))
    }

    /// Sets the registers of a fragment to those of an operand.
    fn fill(
        &mut self,
        fragment: &mut Fragment,
        operand: &'m Operand<'m>,
        is_result: bool,
    ) -> Result<(), LowerError> {
        let kind = if fragment.element == Element::F64 { Kind::Wide } else { Kind::Narrow };
        let elements = self.elements(operand);
        fragment.registers = self.matrix_registers(&elements, kind, is_result)?;
        let (found, needed) = (fragment.registers.len(), fragment.needed());
        let is_enough = match fragment.place {
            Spread::Repeated => found >= needed,
            _ => found == needed,
        };
        if is_enough {
            return Ok(());
        }
        Err(self.error(format!(
            "a matrix of {} × {} elements is given in {found} registers; expected {needed}",
            fragment.rows, fragment.columns
        )))
    }

    fn matrix_registers(
        &mut self,
        elements: &[&'m Operand<'m>],
        kind: Kind,
        is_result: bool,
    ) -> Result<Vec<Row>, LowerError> {
        let row = |element: &&'m Operand<'m>| match is_result {
            true => self.result(element, kind),
            false => self.source(element, kind, Literal::Integer),
        };
        elements.iter().map(row).collect()
    }

    /// `wmma.load.a.sync.aligned.layout.shape.space.type r, [p], stride;` and
    /// `wmma.store.d.… [p], r, stride;`. Without a stride, rows or columns follow each other.
    fn matrix_in_memory(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let (Some([m, n, k]), Some(element)) = (op.find(shape_of), Element::of(op.last())) else {
            return Err(self.refused(instruction));
        };
        let (rows, columns) = match op.parts.get(1).copied() {
            Some("a") => (m, k),
            Some("b") => (k, n),
            Some("c" | "d") => (m, n),
            _ => return Err(self.refused(instruction)),
        };
        let is_load = op.has("load");
        let is_by_columns = op.has("col");
        let (registers, memory) = if is_load { (0, 1) } else { (1, 0) };
        let mut fragment =
            Fragment { element, rows, columns, place: Spread::Repeated, registers: Vec::new() };
        self.fill(&mut fragment, self.operand(operands, registers)?, is_load)?;
        let (a, window) = self.address_row(self.operand(operands, memory)?, self.window_of(op))?;
        let stride = match operands.get(2) {
            Some(stride) => self.source(stride, Kind::Narrow, Literal::Integer)?,
            None => self.constant(Kind::Narrow, if is_by_columns { rows } else { columns } as u64)?,
        };
        let address = self.temporary(Kind::Wide)?;
        let run: Run = if is_load { matrix::load } else { matrix::store };
        let matrix = Matrix::Memory { fragment, is_by_columns, stride, address };
        self.emit_matrix(matrix, is_load, Op { a, window, ..Op::new(run) })
    }

    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 r, [p];` and `stmatrix.… [p], r;`.
    fn matrix_rows(&mut self, op: &Opcode<'_>, instruction: &'m Instruction<'m>) -> Result<(), LowerError> {
        let operands = &instruction.operands;
        let count = op.find(|part| part.strip_prefix('x')?.parse::<usize>().ok());
        if !op.has("m8n8") || op.last() != "b16" {
            return Err(self.refused(instruction));
        }
        let is_load = op.name == "ldmatrix";
        let (registers, memory) = if is_load { (0, 1) } else { (1, 0) };
        let elements = self.elements(self.operand(operands, registers)?);
        let (found, expected) = (elements.len(), count.unwrap_or(1));
        if found != expected || !matches!(expected, 1 | 2 | 4) {
            return Err(self.error(format!("it has {found} registers; expected {expected}")));
        }
        let registers = self.matrix_registers(&elements, Kind::Narrow, is_load)?;
        let (a, window) = self.address_row(self.operand(operands, memory)?, self.window_of(op))?;
        let address = self.temporary(Kind::Wide)?;
        let run: Run = if is_load { matrix::load_rows } else { matrix::store_rows };
        let matrix = Matrix::Rows { registers, is_transposed: op.has("trans"), address };
        self.emit_matrix(matrix, is_load, Op { a, window, ..Op::new(run) })
    }
}
