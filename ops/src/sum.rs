//! A sum as one launch or, of much, as two.

use warpline_kernels::{self as kernels, SUM_RUN, launch};
use warpline_runtime::{Buffer, Pending, Result, Site, Stream};

/// What the sum is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Nothing: it is the sum.
    One,
    /// The number of elements: it is the mean.
    All,
}

/// total\[0\] ← the sum or the mean of `x`, on `stream`, under the name and line in `site`. Both ways give the same bits.
///
/// # Errors
/// As `Stream::alloc`. A refusal is in the `Pending`.
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
        return Ok(stream.launch_at(site, call, launch::one_block()));
    }
    let runs = n.div_ceil(SUM_RUN);
    let sums = stream.alloc_at::<f32>(Site::at(&"alloc", site.location), runs as usize)?;
    let divisor = if over == Over::All { n as f32 } else { 1.0 };
    let of_runs = stream.launch_at(site, kernels::sum_runs(n, x, &sums), launch::runs(runs));
    Ok(match of_runs.into_operand() {
        Ok(()) => stream.launch_at(site, kernels::sum_tree(runs, divisor, &sums, total), launch::one_block()),
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
                let (op, kernel) = (op.item::<f32>().wait()?, stream.read_one(&one).wait()?);
                assert_eq!(op.to_bits(), kernel.to_bits(), "{n}");
            }
            assert_eq!(crate::sum(x.buffer()?).wait()?.to_bits(), x.sum().item::<f32>().wait()?.to_bits());
        }
        Ok(())
    }

    #[test]
    fn a_large_sum_on_another_stream_is_refused_under_its_own_name() -> Result<()> {
        // What other tests await is observed in their runtime.
        let runtime = Runtime::builder().build()?;
        let device = runtime.device(DeviceId::Cpu(0))?;
        let x = Tensor::zeros([launch::ONE_BLOCK as usize + 1], &device).queued()?;
        let side = device.new_stream()?;
        let error = side.enter(|| x.sum().item::<f32>()).wait().unwrap_err();
        assert!(error.to_string().starts_with("sum on stream"), "{error}");
        Ok(())
    }
}
