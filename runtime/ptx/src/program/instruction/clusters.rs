//! Instructions and directives of clusters.

use crate::exec::clusters::{self, AskedCluster, MOST_BLOCKS};
use crate::exec::control::OF_CLUSTER;
use crate::exec::dependence::{Fields, Way};
use crate::exec::effect::Effect;
use crate::exec::op::{Op, Run};
use crate::exec::registers::{Kind, Literal};
use crate::program::error::LowerError;
use crate::program::form::{Opcode, kind_of};
use crate::program::lower::Lowering;
use crate::text::{Function, Instruction, Operand};

/// Returns what the directives of a kernel say of its clusters.
pub(in crate::program) fn cluster_of(kernel: &Function<'_>) -> Result<AskedCluster, LowerError> {
    let find = |name: &str| kernel.directives.iter().find(|directive| directive.name == name);
    let number = |blocks: &u64| u32::try_from(*blocks).unwrap_or(u32::MAX);
    let mut asked = AskedCluster {
        size: None,
        most: find("maxclusterrank").and_then(|found| found.numbers.first()).map(number),
        is_explicit: find("explicitcluster").is_some(),
    };
    let Some(found) = find("reqnctapercluster") else { return Ok(asked) };
    let mut size = [1; 3];
    for (axis, blocks) in size.iter_mut().zip(&found.numbers) {
        *axis = number(blocks);
    }
    let blocks = size.iter().fold(1, |all: u64, blocks| all.saturating_mul((*blocks).into()));
    if !(1..=u64::from(MOST_BLOCKS)).contains(&blocks) {
        let problem = format!(
            "{} asks for clusters of {size:?} blocks (.{}), and a cluster has 1 to {MOST_BLOCKS} here, the most \
             that all GPUs with clusters have; ask for 1 to {MOST_BLOCKS}",
            kernel.name, found.name
        );
        return Err(LowerError { line: found.line, problem });
    }
    asked.size = Some(size);
    Ok(asked)
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
        let extra = u64::from(op.has("shared::cluster"));
        self.emit(Op { d, a, b, extra, ..Op::new(run) }, Way::Whole, fields);
        Ok(())
    }

    /// `getctarank`, whose result has 32 bits.
    pub(super) fn rank_of_address(
        &mut self,
        op: &Opcode<'_>,
        operands: &'m [Operand<'m>],
    ) -> Result<(), LowerError> {
        let kind = kind_of(op.last()).ok_or_else(|| self.error("getctarank needs u32 or u64"))?;
        let a = self.source(self.operand(operands, 1)?, kind, Literal::Integer)?;
        let d = self.result(self.operand(operands, 0)?, Kind::Narrow)?;
        let run: Run = match kind {
            Kind::Narrow => clusters::rank_of_address::<u32>,
            _ => clusters::rank_of_address::<u64>,
        };
        let fields = Fields::of(Some(Kind::Narrow), [Some(kind), None, None, None]);
        let extra = u64::from(op.has("shared::cluster"));
        self.emit(Op { d, a, extra, ..Op::new(run) }, Way::Whole, fields);
        Ok(())
    }
}
