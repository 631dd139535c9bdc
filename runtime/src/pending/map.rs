//! `Pending`s of the same work with another value.

use super::Pending;
use super::output::Output;

impl Pending<()> {
    /// Returns a `Pending` of the same work that yields `value`, for ops that return the value they
    /// wrote.
    pub fn with<T>(self, value: T) -> Pending<T> {
        self.with_output(|output| output.with(value))
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Returns a `Pending` of the same work that yields `f` of its value.
    ///
    /// `f` runs on the thread that takes the value, after the work has finished: in the poll that
    /// resolves the `Pending`, or in `blocking_wait`. If the work fails or the `Pending` is
    /// dropped, `f` does not run. So the value is not known before: [`queued`](Self::queued) and
    /// the use as an operand return an error.
    ///
    /// ```
    /// # fn main() -> warpline::Result<()> {
    /// # let device = warpline::Device::best()?;
    /// let x = device.alloc::<f32>(3)?;
    /// warpline::ops::fill_(&x, 2.0).queued()?;
    /// let largest = warpline::ops::read(&x).map(|x| x.into_iter().fold(0.0, f32::max));
    /// assert_eq!(largest.blocking_wait()?, 2.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Pending<U> {
        self.with_output(|output| output.map(f))
    }
}

impl<T> Pending<T> {
    pub(super) fn with_output<U>(self, change: impl FnOnce(Output<T>) -> Output<U>) -> Pending<U> {
        let (work, output) = self.into_parts();
        Pending { work, output: output.map(change) }
    }
}
