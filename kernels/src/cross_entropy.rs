//! The cross entropy of softmax(logits) with class labels, and its gradient.
//!
//! Reads 8 bytes per element (two passes) and 8 bytes per row; writes 4 bytes per element.
//!
//! For a row x with label l, loss = ln Σ exp(x − max x) − (x\[l\] − max x). The gradient of the
//! mean loss of m rows is (softmax(x) − \[c = l\]) / m. Subtracting the maximum keeps exp within
//! range without changing either (Goodfellow, Bengio and Courville, "Deep Learning", MIT Press
//! 2016, section 4.1).

use crate::convert::{rounded, size};

const PTX: &str = include_str!("../ptx/cross_entropy.ptx");

warpline_runtime::kernel! {
    /// Computes loss\[0\] ← the mean over the rows of the cross entropy, and grad ← its gradient
    /// with respect to `logits`.
    ///
    /// `logits` and `grad` are row-major, `rows` × `cols`. `labels` holds a column index for each
    /// row. exp is computed in f32. Sums and the logarithm are computed in f64, in an order that is
    /// fixed for each kind of device, and the mean is rounded once. A label outside 0..`cols` makes
    /// the loss and its row of the gradient NaN. With no rows the loss is NaN.
    pub unsafe fn cross_entropy(
        rows: u64, cols: u64, logits: &[f32], labels: &[i64], write loss: &mut [f32], write grad: &mut [f32]
    )
    where rows.saturating_mul(cols) == logits.len() as u64
        && rows == labels.len() as u64
        && loss.len() == 1
        && logits.len() == grad.len()
    {
        descriptor: CROSS_ENTROPY,
        tolerance: 1e-6,
        ptx_from_sm_60: PTX,
        cpu: |rows, cols, logits, labels, loss, grad| {
            let mut total = 0.0;
            each_row(rows, cols, logits, labels, grad, |_, loss| total += loss);
            loss[0] = rounded(total / rows as f64);
        },
    }

    /// Computes losses\[r\] ← the cross entropy of row `r`, and `grad` as in
    /// [`cross_entropy`](fn@cross_entropy).
    ///
    /// This is the first step of the two-step form, for batches that are too large for a single
    /// block of a GPU.
    pub unsafe fn cross_entropy_rows(
        rows: u64, cols: u64, logits: &[f32], labels: &[i64], write losses: &mut [f64], write grad: &mut [f32]
    )
    where rows.saturating_mul(cols) == logits.len() as u64
        && rows == labels.len() as u64
        && rows == losses.len() as u64
        && logits.len() == grad.len()
    {
        descriptor: CROSS_ENTROPY_ROWS,
        tolerance: 1e-6,
        ptx_from_sm_60: PTX,
        cpu: |rows, cols, logits, labels, losses, grad| {
            each_row(rows, cols, logits, labels, grad, |r, loss| losses[r] = loss)
        },
    }

    /// Computes loss\[0\] ← the mean of the `rows` losses, NaN if there are none.
    ///
    /// This is the second step of the two-step form, after
    /// [`cross_entropy_rows`](fn@cross_entropy_rows).
    pub unsafe fn cross_entropy_mean(rows: u64, losses: &[f64], write loss: &mut [f32])
    where rows == losses.len() as u64 && loss.len() == 1
    {
        descriptor: CROSS_ENTROPY_MEAN,
        ptx_from_sm_60: PTX,
        cpu: |rows, losses, loss| loss[0] = rounded(losses.iter().fold(0.0, |sum, x| sum + x) / rows as f64),
    }
}

/// Writes the gradients, and passes the index and the loss of each row to `hand_over`, in order.
fn each_row(
    rows: u64,
    cols: u64,
    logits: &[f32],
    labels: &[i64],
    grad: &mut [f32],
    mut hand_over: impl FnMut(usize, f64),
) {
    if cols == 0 {
        return (0..labels.len()).for_each(|r| hand_over(r, f64::NAN));
    }
    let each = logits.chunks_exact(size(cols)).zip(grad.chunks_exact_mut(size(cols)));
    for (r, ((logits, grad), &label)) in each.zip(labels).enumerate() {
        hand_over(r, row(logits, label, 1.0 / rows as f32, grad));
    }
}

/// Returns the loss of one row, and writes its gradient times `weight`.
fn row(logits: &[f32], label: i64, weight: f32, grad: &mut [f32]) -> f64 {
    // The maximum ignores a NaN, which comes back through exp.
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    grad.iter_mut().zip(logits).for_each(|(e, x)| *e = (x - max).exp());
    let sum: f64 = grad.iter().map(|&e| f64::from(e)).sum();
    let Some(at) = usize::try_from(label).ok().filter(|&at| at < logits.len()) else {
        grad.fill(f32::NAN);
        return f64::NAN;
    };
    let scale = rounded(f64::from(weight) / sum);
    grad.iter_mut().for_each(|e| *e *= scale);
    grad[at] -= weight;
    sum.ln() - f64::from(logits[at] - max)
}

#[cfg(test)]
mod tests {
    use super::{CROSS_ENTROPY, CROSS_ENTROPY_MEAN, CROSS_ENTROPY_ROWS};
    use crate::twin::{read, run, value, written};

    fn cross_entropy(cols: usize, logits: &[f32], labels: &[i64]) -> (f32, Vec<f32>) {
        let (mut loss, mut grad) = ([9.0f32], vec![9.0f32; logits.len()]);
        run(
            &CROSS_ENTROPY,
            &[
                value(labels.len() as u64),
                value(cols as u64),
                read(logits),
                read(labels),
                written(&mut loss),
                written(&mut grad),
            ],
        );
        (loss[0], grad)
    }

    #[test]
    fn agrees_with_the_formula_in_f64() {
        let (rows, cols) = (7, 10);
        let logits: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 1.7).sin() * 5.0).collect();
        let labels: Vec<i64> = (0..rows as i64).map(|r| r * 3 % cols as i64).collect();
        let (loss, grad) = cross_entropy(cols, &logits, &labels);
        let mut expected = 0.0;
        for r in 0..rows {
            let x: Vec<f64> = logits[r * cols..(r + 1) * cols].iter().map(|&x| f64::from(x)).collect();
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            expected += sum.ln() - x[labels[r] as usize];
            for c in 0..cols {
                let hot = f64::from(u8::from(c as i64 == labels[r]));
                let exact = (x[c].exp() / sum - hot) / rows as f64;
                assert!((f64::from(grad[r * cols + c]) - exact).abs() < 1e-7);
            }
        }
        assert!((f64::from(loss) - expected / rows as f64).abs() < 1e-6);
    }

    #[test]
    fn both_steps_give_the_same_bits() {
        for (rows, cols) in [(0, 3), (2, 0), (5, 4), (37, 10)] {
            let logits: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 1.3).sin() * 7.0).collect();
            let labels: Vec<i64> = (0..rows as i64).map(|r| r % 3).collect();
            let (mut losses, mut grad, mut loss) = (vec![9.0f64; rows], vec![9.0f32; rows * cols], [9.0f32]);
            let sizes = [value(rows as u64), value(cols as u64), read(&logits), read(&labels)];
            let written_to = [written(&mut losses), written(&mut grad)];
            run(&CROSS_ENTROPY_ROWS, &sizes.into_iter().chain(written_to).collect::<Vec<_>>());
            run(&CROSS_ENTROPY_MEAN, &[value(rows as u64), read(&losses), written(&mut loss)]);
            let whole = cross_entropy(cols, &logits, &labels);
            assert_eq!((loss[0].to_bits(), grad), (whole.0.to_bits(), whole.1), "{rows} {cols}");
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let (loss, grad) = cross_entropy(2, &[1e30, -1e30], &[0]);
        assert_eq!((loss, &grad[..]), (0.0, &[0.0, 0.0][..]));
    }

    #[test]
    fn a_label_out_of_range_gives_nan_in_its_row_and_in_the_loss() {
        for label in [-1, 2, i64::MAX, i64::MIN] {
            let (loss, grad) = cross_entropy(2, &[1.0, 1.0, 3.0, 3.0], &[0, label]);
            assert!(loss.is_nan() && grad[2].is_nan() && grad[3].is_nan());
            assert_eq!(grad[..2], [-0.25, 0.25]);
        }
    }

    #[test]
    fn nan_and_infinities_give_nan_as_does_nothing() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            let (loss, grad) = cross_entropy(2, &logits, &[1]);
            assert!(loss.is_nan() && grad.iter().any(|x| x.is_nan()), "{logits:?}");
        }
        assert_eq!(cross_entropy(2, &[f32::NEG_INFINITY, 0.0], &[1]).0, 0.0);
        assert!(cross_entropy(2, &[], &[]).0.is_nan());
        assert!(cross_entropy(0, &[], &[0]).0.is_nan());
    }
}
