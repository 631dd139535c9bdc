//! The order in which a loader reads a dataset: one list of indices for each epoch.

use super::draws::Draws;
use std::sync::Arc;
use warpline_runtime::{Error, ErrorKind, Result};

/// The indices of an epoch's samples, in order.
pub type Indices = Box<dyn Iterator<Item = usize> + Send>;

/// An order of a dataset's samples, chosen anew for each epoch.
///
/// A sampler may repeat samples and leave samples out.
///
/// # Examples
/// A sampler of one's own that yields every second sample:
/// ```
/// use warpline::ops::data::{Indices, Sampler};
/// # use warpline::Result;
///
/// struct EverySecond;
///
/// impl Sampler for EverySecond {
///     fn indices(&self, len: usize, _epoch: u64) -> Result<Indices> {
///         Ok(Box::new((0..len).step_by(2)))
///     }
/// }
/// # assert_eq!(EverySecond.indices(5, 0).unwrap().collect::<Vec<_>>(), [0, 2, 4]);
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// Returns the indices for epoch `epoch` of a dataset with `len` samples, which is at least 1.
    ///
    /// For the same arguments, the indices must be the same, if every run and every number of
    /// workers shall yield the same batches. An index of `len` or more is an error when its batch
    /// is read. The iterator must not wait for the loader that uses it.
    ///
    /// # Errors
    /// Any error, which ends the stream of batches at the beginning of this epoch.
    fn indices(&self, len: usize, epoch: u64) -> Result<Indices>;
}

impl<T: Sampler + ?Sized> Sampler for Arc<T> {
    fn indices(&self, len: usize, epoch: u64) -> Result<Indices> {
        (**self).indices(len, epoch)
    }
}

/// A sampler that yields the samples in the dataset's order. This is a loader's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct InOrder;

impl Sampler for InOrder {
    fn indices(&self, len: usize, _: u64) -> Result<Indices> {
        Ok(Box::new(0..len))
    }
}

/// A sampler that yields each sample once, in random order. Every order is equally likely.
///
/// An epoch takes 8 bytes of memory per sample. [`Loader::shuffle`](super::Loader::shuffle) uses
/// this sampler.
#[derive(Clone, Copy, Debug)]
pub struct Shuffled {
    seed: u64,
}

impl Shuffled {
    /// Creates a sampler that draws the order from `seed` and the epoch's number.
    pub fn new(seed: u64) -> Self {
        Shuffled { seed }
    }
}

impl Sampler for Shuffled {
    fn indices(&self, len: usize, epoch: u64) -> Result<Indices> {
        Ok(shuffled((0..len).collect(), self.seed, epoch))
    }
}

fn shuffled(mut left: Vec<usize>, seed: u64, epoch: u64) -> Indices {
    let mut draws = Draws::new(seed, epoch);
    Box::new(std::iter::from_fn(move || {
        (!left.is_empty()).then(|| left.swap_remove(draws.below(left.len())))
    }))
}

/// A sampler that draws each sample from the whole dataset, with equal probability.
#[derive(Clone, Copy, Debug)]
pub struct WithReplacement {
    seed: u64,
    samples: usize,
}

impl WithReplacement {
    /// Creates a sampler that yields `samples` indices in each epoch. It draws them from `seed` and
    /// the epoch's number.
    pub fn new(seed: u64, samples: usize) -> Self {
        WithReplacement { seed, samples }
    }
}

impl Sampler for WithReplacement {
    fn indices(&self, len: usize, epoch: u64) -> Result<Indices> {
        let mut draws = Draws::new(self.seed, epoch);
        Ok(Box::new((0..self.samples).map(move |_| draws.below(len))))
    }
}

/// A sampler that draws each sample from the whole dataset, with a probability proportional to the
/// sample's weight.
#[derive(Clone, Debug)]
pub struct Weighted {
    seed: u64,
    samples: usize,
    /// The sums of the weights up to and including each sample.
    sums: Arc<[f64]>,
}

impl Weighted {
    /// Creates a sampler that yields `samples` indices in each epoch. It draws them from `seed` and
    /// the epoch's number. There must be one weight for each sample of the dataset.
    ///
    /// # Errors
    /// `InvalidArgument` if a weight is negative or not finite, or if the sum of all weights is not
    /// positive and finite.
    pub fn new(seed: u64, samples: usize, weights: &[f64]) -> Result<Self> {
        let wrong = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
        if let Some(at) = weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
            return wrong(format!(
                "a sampler of {} weights: weight {at} is {}, and a finite number of at least 0 is \
                 needed; correct it",
                weights.len(),
                weights[at]
            ));
        }
        let sums: Arc<[f64]> = weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let total = sums.last().copied().unwrap_or(0.0);
        if !(total.is_finite() && total > 0.0) {
            return wrong(format!(
                "a sampler of {} weights: their sum is {total}, and a finite number above 0 is \
                 needed; scale them, or pass at least one weight above 0",
                weights.len()
            ));
        }
        Ok(Weighted { seed, samples, sums })
    }
}

impl Sampler for Weighted {
    /// # Errors
    /// `InvalidArgument` if the dataset has another number of samples than there are weights.
    fn indices(&self, len: usize, epoch: u64) -> Result<Indices> {
        if len != self.sums.len() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a sampler of {} weights got a dataset of {len} samples; pass one weight for \
                     each sample",
                    self.sums.len()
                ),
            ));
        }
        let (sums, mut draws) = (self.sums.clone(), Draws::new(self.seed, epoch));
        let total = sums[len - 1];
        // The last sample with a weight above 0. Rounding can make a draw equal to the total.
        let last = sums.partition_point(|sum| *sum < total);
        Ok(Box::new((0..self.samples).map(move |_| {
            let draw = draws.unit() * total;
            sums.partition_point(|sum| *sum <= draw).min(last)
        })))
    }
}

/// A sampler that yields the samples at the given indices, for example one part of a split.
#[derive(Clone, Debug)]
pub struct Subset {
    indices: Arc<[usize]>,
    seed: Option<u64>,
}

impl Subset {
    /// Creates a sampler that yields `indices` in the given order.
    pub fn new(indices: impl Into<Arc<[usize]>>) -> Self {
        Subset { indices: indices.into(), seed: None }
    }

    /// Yields the indices in random order, drawn from `seed` and the epoch's number.
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}

impl Sampler for Subset {
    fn indices(&self, _: usize, epoch: u64) -> Result<Indices> {
        Ok(match self.seed {
            Some(seed) => shuffled(self.indices.to_vec(), seed, epoch),
            None => {
                let indices = self.indices.clone();
                Box::new((0..indices.len()).map(move |i| indices[i]))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drawn(sampler: impl Sampler, len: usize, epoch: u64) -> Vec<usize> {
        sampler.indices(len, epoch).unwrap().collect()
    }

    proptest! {
        #[test]
        fn a_shuffle_yields_each_index_once_and_the_same_again(n in 1_usize..300, seed: u64, epoch: u64) {
            let order = drawn(Shuffled::new(seed), n, epoch);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            prop_assert_eq!(drawn(Shuffled::new(seed), n, epoch), order);
        }

        #[test]
        fn a_weighted_draw_yields_only_samples_with_a_weight(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-300..1e300], 1..50), seed: u64,
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let sampler = Weighted::new(seed, 100, &weights).unwrap();
            for index in drawn(sampler, weights.len(), 0) {
                prop_assert!(weights[index] > 0.0, "index {}", index);
            }
        }
    }

    #[test]
    fn draws_follow_their_probabilities() {
        let mut counts = [0_u32; 4];
        let weights = [1.0, 0.0, 3.0, 4.0];
        drawn(Weighted::new(7, 8000, &weights).unwrap(), 4, 0).into_iter().for_each(|i| counts[i] += 1);
        // 1000, 3000 and 4000 expected; the standard deviations are below 45.
        for (count, weight) in counts.into_iter().zip(weights) {
            assert!((f64::from(count) - 1000.0 * weight).abs() < 200.0, "{counts:?}");
        }
        let mut counts = [0_u32; 4];
        drawn(WithReplacement::new(7, 8000), 4, 0).into_iter().for_each(|i| counts[i] += 1);
        assert!(counts.iter().all(|n| (1800..2200).contains(n)), "{counts:?}");
    }

    #[test]
    fn a_subset_keeps_its_order_unless_it_is_shuffled() {
        let subset = Subset::new([5, 1, 4, 1]);
        assert_eq!(drawn(subset.clone(), 6, 0), [5, 1, 4, 1]);
        let orders: Vec<_> = (0..20).map(|epoch| drawn(subset.clone().shuffled(3), 6, epoch)).collect();
        assert!(orders.iter().any(|order| *order != orders[0]));
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, [1, 1, 4, 5]);
        }
    }

    #[test]
    fn weights_that_give_no_probabilities_are_refused() {
        let refused = |weights: &[f64]| Weighted::new(0, 1, weights).unwrap_err().to_string();
        assert!(refused(&[1.0, -2.0]).contains("weight 1 is -2"));
        assert!(refused(&[f64::NAN]).contains("weight 0 is NaN"));
        assert!(refused(&[0.0, 0.0]).contains("2 weights: their sum is 0"));
        assert!(refused(&[]).contains("0 weights: their sum is 0"));
        assert!(refused(&[f64::MAX, f64::MAX]).contains("their sum is inf"));
        let Err(error) = Weighted::new(0, 1, &[1.0]).unwrap().indices(2, 0) else { panic!("refused") };
        assert!(error.to_string().contains("1 weights got a dataset of 2 samples"), "{error}");
    }
}
