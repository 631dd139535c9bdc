//! A sum or a mean as one kernel launch or, of many elements, as two.
// Decision: docs/decisions/0039-a-large-sum-is-two-launches.md

use warpline_kernels::{self as kernels, SUM_RUN, launch};
use warpline_runtime::{Buffer, Pending, Result, Site, Stream};

/// The divisor of the sum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// No divisor: the result is the sum.
    One,
    /// The number of elements: the result is the mean.
    All,
}

/// Enqueues total\[0\] ← the sum or the mean of `x` on `stream`, under the name and line in `site`.
///
/// One launch and two launches give the same bits.
///
/// # Errors
/// The errors of `Stream::alloc`. A refusal is in the `Pending`.
pub(crate) fn enqueue_sum(
    stream: &Stream,
    site: Site,
    x: &Buffer<f32>,
    over: Over,
    total: &Buffer<f32>,
) -> Result<Pending<()>> {
    let n = x.len() as u64;
    if n <= launch::ONE_BLOCK {
        let call = match over {
            Over::One => kernels::sum(n, x, total),
            Over::All => kernels::mean(n, x, total),
        };
        return Ok(stream.at(site).launch(call, launch::one_block()));
    }
    let runs = n.div_ceil(SUM_RUN);
    let count = usize::try_from(runs).expect("there are fewer runs than elements");
    let sums = stream.at(Site::at(&"alloc", site.location)).alloc::<f32>(count)?;
    let divisor = if over == Over::All { n as f32 } else { 1.0 };
    let of_runs = stream.at(site).launch(kernels::sum_runs(n, x, &sums), launch::runs(runs));
    Ok(match of_runs.into_operand() {
        Ok(()) => stream.at(site).launch(kernels::sum_tree(runs, divisor, &sums, total), launch::one_block()),
        Err(refusal) => refusal.pass_on(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, TensorOps};
    use warpline_runtime::{Device, DeviceId, Runtime};

    #[test]
    fn two_launches_give_the_bits_of_one() -> Result<()> {
        let device = Device::best()?;
        let stream = device.default_stream()?;
        for n in [0, 1, launch::ONE_BLOCK, launch::ONE_BLOCK + 1, 300_007] {
            let x = Tensor::randn([n as usize], &device).queued()?;
            let one = stream.alloc::<f32>(1)?;
            for (op, call) in [
                (x.sum(), kernels::sum(n, x.buffer::<f32>()?, &one)),
                (x.mean(), kernels::mean(n, x.buffer::<f32>()?, &one)),
            ] {
                drop(stream.launch(call, launch::one_block()));
                let (op, kernel) =
                    (op.item::<f32>().blocking_wait()?, stream.read_one(&one).blocking_wait()?);
                assert_eq!(op.to_bits(), kernel.to_bits(), "{n}");
            }
            assert_eq!(
                crate::sum(x.buffer()?).blocking_wait()?.to_bits(),
                x.sum().item::<f32>().blocking_wait()?.to_bits()
            );
        }
        Ok(())
    }

    #[test]
    fn a_large_sum_on_another_stream_is_refused_under_its_own_name() -> Result<()> {
        // Uses its own runtime, since work that other tests await is observed in their runtime.
        let runtime = Runtime::builder().build()?;
        let device = runtime.device(DeviceId::Cpu(0))?;
        let x = Tensor::zeros([launch::ONE_BLOCK as usize + 1], &device).queued()?;
        let side = device.new_stream()?;
        let error = side.enter(|| x.sum().item::<f32>()).blocking_wait().unwrap_err();
        assert!(error.to_string().starts_with("sum on stream"), "{error}");
        Ok(())
    }
}
