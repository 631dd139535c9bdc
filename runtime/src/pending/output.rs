//! The value of a call once its work is done.

use super::DeviceValue;
use warpline_driver::Result;

pub(super) enum Output<T> {
    /// Known when the op was enqueued.
    Value(T),
    /// Known when the op was enqueued, with a check to run once the op is done.
    Checked(T, Steps<()>),
    /// Read from what the op wrote, once it is done. Nothing else happens then, so a value that
    /// nobody wants is not read.
    Read(Steps<T>),
    /// Read, and then passed to code of the user.
    Mapped(Steps<T>),
    /// Made when the op is done.
    Later(Steps<T>),
}

/// A function that makes a value. It returns `None` if it has to be called again. A poll calls it
/// once, and a call takes less than a millisecond, besides what code of the user takes.
pub(super) type Steps<T> = Box<dyn FnMut() -> Option<Result<T>> + Send>;

/// Returns steps of one call.
pub(super) fn one_step<T>(make: impl FnOnce() -> Result<T> + Send + 'static) -> Steps<T> {
    let mut make = Some(make);
    Box::new(move || Some(make.take().expect("the last step comes once")()))
}

/// Returns `steps` followed by `f` of what they make.
fn then<T: 'static, U>(mut steps: Steps<T>, f: impl FnOnce(T) -> U + Send + 'static) -> Steps<U> {
    let mut f = Some(f);
    Box::new(move || Some(steps()?.map(|made| f.take().expect("the last step comes once")(made))))
}

impl<T> Output<T> {
    /// Returns the value, or this output if there are more steps to it. To be called once the work
    /// is done.
    #[inline]
    pub(super) fn step(self) -> Result<Result<T>, Self> {
        match self {
            Output::Value(value) => Ok(Ok(value)),
            Output::Checked(value, mut check) => match check() {
                Some(checked) => Ok(checked.map(|()| value)),
                None => Err(Output::Checked(value, check)),
            },
            Output::Read(mut steps) => steps().ok_or(Output::Read(steps)),
            Output::Mapped(mut steps) => steps().ok_or(Output::Mapped(steps)),
            Output::Later(mut steps) => steps().ok_or(Output::Later(steps)),
        }
    }

    /// Returns true if the value is read from what the op wrote.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Output::Read(_) | Output::Mapped(_))
    }

    /// Returns this output with `f` applied to its value once it is made.
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Output<U>
    where
        T: Send + 'static,
    {
        match self {
            Output::Value(value) => Output::Later(one_step(move || Ok(f(value)))),
            Output::Checked(value, check) => Output::Later(then(check, move |()| f(value))),
            Output::Read(steps) | Output::Mapped(steps) => Output::Mapped(then(steps, f)),
            Output::Later(steps) => Output::Later(then(steps, f)),
        }
    }

    /// Returns this output with its value dropped. Its check still runs.
    pub(super) fn without_value(self) -> Output<()>
    where
        T: 'static,
    {
        match self {
            Output::Value(_) | Output::Read(_) => Output::Value(()),
            Output::Checked(_, check) => Output::Checked((), check),
            Output::Mapped(steps) => Output::Mapped(then(steps, drop)),
            Output::Later(steps) => Output::Later(then(steps, drop)),
        }
    }

    /// Returns this output with another value.
    pub(super) fn replaced<U>(self, value: U) -> Output<U> {
        match self {
            Output::Checked(_, check) => Output::Checked(value, check),
            Output::Value(_) | Output::Read(_) | Output::Mapped(_) | Output::Later(_) => Output::Value(value),
        }
    }
}

impl<T: DeviceValue> Output<T> {
    /// Returns the value before the work is done, if it is known. One that is made later reads
    /// results of the work, except `()`.
    pub(super) fn known(self) -> Option<T> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Some(value),
            Output::Read(_) | Output::Mapped(_) | Output::Later(_) => T::at_once().cloned(),
        }
    }

    /// Returns the value that [`known`](Self::known) returns.
    pub(super) fn look(&self) -> Option<&T> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Some(value),
            Output::Read(_) | Output::Mapped(_) | Output::Later(_) => T::at_once(),
        }
    }
}

impl Output<()> {
    pub(super) fn with<T>(self, value: T) -> Output<T> {
        match self {
            Output::Value(()) => Output::Value(value),
            Output::Checked((), steps)
            | Output::Read(steps)
            | Output::Mapped(steps)
            | Output::Later(steps) => Output::Checked(value, steps),
        }
    }
}
