//! Instructions and directives of clusters, which have one block here.

use crate::exec::clusters;
use crate::exec::control::OF_CLUSTER;
use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Op, Run};
use crate::exec::registers::{Kind, Literal};
use crate::program::error::LowerError;
use crate::program::form::{Opcode, kind_of};
use crate::program::lower::Lowering;
use crate::text::{Function, Instruction, Operand};

/// Refuses a kernel whose clusters have several blocks, or are those of the launch.
pub(in crate::program) fn check_directives(kernel: &Function<'_>) -> Result<(), LowerError> {
    let find = |name: &str| kernel.directives.iter().find(|directive| directive.name == name);
    let (found, asks) = match (find("reqnctapercluster"), find("explicitcluster")) {
        (Some(found), _) if found.numbers.iter().any(|blocks| *blocks > 1) => {
            let blocks: u64 = found.numbers.iter().fold(1, |all, blocks| all.saturating_mul(*blocks));
            (found, format!("clusters of {blocks} blocks"))
        }
        (None, Some(found)) => (found, "a launch with clusters".to_owned()),
        _ => return Ok(()),
    };
    let numbers: Vec<String> = found.numbers.iter().map(u64::to_string).collect();
    let directive = format!(".{} {}", found.name, numbers.join(", "));
    let problem = format!(
        "{} asks for {asks}, and each block is the only one of its cluster here; run the kernel on a GPU with \
         clusters, or compile it for clusters of one block",
        directive.trim_end()
    );
    Err(LowerError { line: found.line, problem })
}

impl<'m> Lowering<'m> {
    /// `barrier.cluster.arrive` and `barrier.cluster.wait`, whatever their order of memory is: it
    /// counts as the default, which is the strongest one.
    pub(super) fn cluster_barrier(
        &mut self,
        op: &Opcode<'_>,
        instruction: &'m Instruction<'m>,
    ) -> Result<(), LowerError> {
        let run: Run = match op.parts.get(1).copied() {
            Some("arrive") => clusters::arrive,
            Some("wait") => clusters::wait,
            _ => return Err(self.refused(instruction)),
        };
        if op.has("arrive") {
            self.this.line.effect = Effect::Arrive;
        }
        let a = self.constant(Kind::Narrow, clusters::OPEN.into())?;
        let fields = Fields::of(None, [Some(Kind::Narrow), None, None, None]);
        self.emit(Op { a, extra: OF_CLUSTER, ..Op::new(run) }, Way::Use, fields);
        Ok(())
    }

    /// `mapa`, whose address is generic or one in shared memory.
    pub(super) fn map_address(
        &mut self,
        op: &Opcode<'_>,
        operands: &'m [Operand<'m>],
    ) -> Result<(), LowerError> {
        let kind = kind_of(op.last()).ok_or_else(|| self.error("mapa needs u32 or u64"))?;
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let b = self.source(self.operand(operands, 2)?, Kind::Narrow, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, kind)?;
        let run: Run = match kind {
            Kind::Narrow => clusters::map_address::<u32>,
            _ => clusters::map_address::<u64>,
        };
        let fields = Fields::of(Some(kind), [Some(kind), Some(Kind::Narrow), None, None]);
        self.emit(Op { d, a, b, ..Op::new(run) }, Way::Whole, fields);
        Ok(())
    }

    /// `getctarank`, whose result has 32 bits.
    pub(super) fn rank_of_address(
        &mut self,
        op: &Opcode<'_>,
        operands: &'m [Operand<'m>],
    ) -> Result<(), LowerError> {
        let kind = kind_of(op.last()).ok_or_else(|| self.error("getctarank needs u32 or u64"))?;
        self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Narrow)?;
        let fields = Fields::of(Some(Kind::Narrow), [None; 4]);
        self.emit(Op { d, ..Op::new(clusters::rank_of_address) }, Way::Whole, fields);
        Ok(())
    }
}
