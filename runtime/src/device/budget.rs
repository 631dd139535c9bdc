//! Budgets: shares of a device's memory.

use crate::memory::BudgetId;
use crate::order::Site;
use crate::scope;
use crate::shared::{Budget, Budgeted, Device, budget, budget_blocking};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use warpline_driver::{ByteSize, Result};

impl Device {
    /// Waits for a share of this device's memory, `bytes` rounded up to 2 MiB, and for those that
    /// asked before. A future asks at its first poll.
    ///
    /// It is granted once it fits beside the other budgets and the memory outside: live
    /// allocations that no budget counts, each with the pieces of memory that it lies in, and the
    /// memory of graphs. The whole is the [`memory_limit`](crate::RuntimeBuilder::memory_limit)
    /// or, if that is less, what the device has left for this process when the first budget is
    /// asked for. Memory outside is not limited by budgets, so leave room for what the program
    /// allocates without one, and for the workspaces of libraries. Two runtimes with one device
    /// need limits that fit together. [`memory_summary`](Self::memory_summary) shows the budgets
    /// and the requests that wait.
    ///
    /// Ask before anything is allocated that others may wait for. To use several devices, ask for
    /// all budgets in the same order everywhere, and then nest their scopes. A task that holds a
    /// budget and asks for another one outside of the scope may wait for itself.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue. Nothing is lost.
    ///
    /// # Errors
    /// `OutOfMemory` if it does not fit beside the memory outside; `Reentrant` in the scope of a
    /// budget, on whichever device, since two requests that each wait for a second budget never
    /// end, and in a host function; `InvalidArgument` if there is no limit and the driver does not
    /// report how much memory the device has; the device's fault, also while it waits; `ShutDown`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> warpline::Result<()> {
    /// let runtime = warpline::Runtime::builder().memory_limit(64 << 20).build()?;
    /// let device = runtime.device("cpu".parse()?)?;
    /// let requests = (0..10_u8).map(|request| {
    ///     let device = device.clone();
    ///     async move {
    ///         // Two of the ten run at a time; the others wait.
    ///         let budget = device.budget(30 << 20).await?;
    ///         let work = budget.scope(|| async {
    ///             let stream = device.new_stream()?;
    ///             let (input, output) = (stream.alloc(14 << 20)?, stream.alloc::<u8>(14 << 20)?);
    ///             stream.fill(&input, request).queued()?;
    ///             stream.copy_buffer(&output, &input).await
    ///         });
    ///         work.await
    ///     }
    /// });
    /// futures::future::try_join_all(requests).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn budget(&self, bytes: usize) -> impl Future<Output = Result<Budget>> + Send + use<'_> {
        let site = Site::here(&"budget");
        async move {
            let budgeted = budget(self.shared(), site, bytes, within()).await?;
            Ok(Budget(Arc::new(budgeted)))
        }
    }

    /// Waits like [`budget`](Self::budget), on the calling thread.
    ///
    /// # Errors
    /// The errors of [`budget`](Self::budget); `Reentrant` also in a waker, and in a task with
    /// [`SyncMode::Error`](crate::SyncMode::Error).
    #[track_caller]
    pub fn blocking_budget(&self, bytes: usize) -> Result<Budget> {
        let site = Site::here(&"blocking_budget");
        let budgeted = budget_blocking(self.shared(), site, bytes, within())?;
        Ok(Budget(Arc::new(budgeted)))
    }
}

/// Returns the bytes of the budget in whose scope the caller is.
fn within() -> Option<usize> {
    scope::budget().map(|budget| Budget(budget).bytes())
}

impl Budget {
    /// Returns the device.
    pub fn device(&self) -> Device {
        Device::of(self.0.device.clone())
    }

    /// Returns the bytes that were granted.
    pub fn bytes(&self) -> usize {
        self.figures().0
    }

    /// Returns the bytes that count against it now.
    pub fn used_bytes(&self) -> usize {
        self.figures().1
    }

    /// Returns the most bytes that counted against it so far: the least budget with which the same
    /// allocations would have been served.
    pub fn peak_used_bytes(&self) -> usize {
        self.figures().2
    }

    /// Returns the bytes granted and used, and the most used. In the child of a fork all are 0.
    fn figures(&self) -> (usize, usize, usize) {
        let Budgeted { device, id } = &*self.0;
        let id: BudgetId = *id;
        if warpline_driver::process::is_forked() { (0, 0, 0) } else { device.memory.budget(id) }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, used_bytes, _) = self.figures();
        write!(f, "Budget({}, {} of {})", self.0.device.id, ByteSize(used_bytes), ByteSize(bytes))
    }
}
