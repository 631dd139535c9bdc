//! The value of a call once its work is done.

use super::DeviceValue;
use warpline_driver::Result;

pub(super) enum Output<T> {
    /// Known when the op was enqueued.
    Value(T),
    /// Known when the op was enqueued, with a check to run once the op is done.
    Checked(T, Box<dyn FnOnce() -> Result<()> + Send>),
    /// Made when the op is done.
    Later(Box<dyn FnOnce() -> Result<T> + Send>),
    /// Made when the op is done, in steps of which each takes less than a millisecond, besides what
    /// `map` does. A poll makes one step. A step returns `None` if there are more.
    InSteps(Steps<T>),
}

pub(super) type Steps<T> = Box<dyn FnMut() -> Option<Result<T>> + Send>;

impl<T> Output<T> {
    /// Returns the value, or this output if there are more steps to it. To be called once the work
    /// is done.
    #[inline]
    pub(super) fn step(self) -> Result<Result<T>, Self> {
        match self {
            Output::Value(value) => Ok(Ok(value)),
            Output::Checked(value, check) => Ok(check().map(|()| value)),
            Output::Later(make) => Ok(make()),
            Output::InSteps(mut step) => step().ok_or(Output::InSteps(step)),
        }
    }

    /// Returns this output with `f` applied to its value once it is made.
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Output<U>
    where
        T: Send + 'static,
    {
        match self {
            Output::InSteps(mut step) => {
                let mut f = Some(f);
                let mut apply = move |value| f.take().expect("the last step comes once")(value);
                Output::InSteps(Box::new(move || step().map(|made| made.map(&mut apply))))
            }
            Output::Value(value) => Output::Later(Box::new(move || Ok(f(value)))),
            Output::Checked(value, check) => Output::Later(Box::new(move || check().map(|()| f(value)))),
            Output::Later(make) => Output::Later(Box::new(move || make().map(f))),
        }
    }

    /// Returns this output with its value dropped. Its check still runs.
    pub(super) fn without_value(self) -> Output<()>
    where
        T: 'static,
    {
        match self {
            Output::Value(_) => Output::Value(()),
            Output::Checked(_, check) => Output::Checked((), check),
            Output::Later(make) => Output::Later(Box::new(move || make().map(drop))),
            Output::InSteps(mut step) => Output::InSteps(Box::new(move || step().map(|made| made.map(drop)))),
        }
    }

    /// Returns this output with another value.
    pub(super) fn replaced<U>(self, value: U) -> Output<U> {
        match self {
            Output::Checked(_, check) => Output::Checked(value, check),
            Output::Value(_) | Output::Later(_) | Output::InSteps(_) => Output::Value(value),
        }
    }
}

impl<T: DeviceValue> Output<T> {
    /// Returns the value before the work is done, if it is known. One that is made later reads
    /// results of the work, except `()`.
    pub(super) fn known(self) -> Option<T> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Some(value),
            Output::Later(_) | Output::InSteps(_) => T::at_once().cloned(),
        }
    }

    /// Returns the value that [`known`](Self::known) returns.
    pub(super) fn look(&self) -> Option<&T> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Some(value),
            Output::Later(_) | Output::InSteps(_) => T::at_once(),
        }
    }
}

impl Output<()> {
    pub(super) fn with<T>(self, value: T) -> Output<T> {
        match self {
            Output::Value(()) => Output::Value(value),
            Output::Checked((), check) | Output::Later(check) => Output::Checked(value, check),
            Output::InSteps(mut step) => Output::Checked(
                value,
                Box::new(move || {
                    loop {
                        if let Some(made) = step() {
                            return made;
                        }
                    }
                }),
            ),
        }
    }
}
