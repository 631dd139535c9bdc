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
}

impl<T> Output<T> {
    /// Returns the value. To be called once the work is done.
    pub(super) fn take(self) -> Result<T> {
        match self {
            Output::Value(value) => Ok(value),
            Output::Checked(value, check) => check().map(|()| value),
            Output::Later(make) => make(),
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
        }
    }

    /// Returns this output with another value.
    pub(super) fn replaced<U>(self, value: U) -> Output<U> {
        match self {
            Output::Checked(_, check) => Output::Checked(value, check),
            Output::Value(_) | Output::Later(_) => Output::Value(value),
        }
    }
}

impl<T: DeviceValue> Output<T> {
    /// Returns the value before the work is done, if it is known. One that is made later reads
    /// results of the work, except `()`.
    pub(super) fn known(self) -> Option<T> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Some(value),
            Output::Later(_) => T::at_once().cloned(),
        }
    }

    /// Returns the value that [`known`](Self::known) returns.
    pub(super) fn look(&self) -> Option<&T> {
        match self {
            Output::Value(value) | Output::Checked(value, _) => Some(value),
            Output::Later(_) => T::at_once(),
        }
    }
}

impl Output<()> {
    pub(super) fn with<T>(self, value: T) -> Output<T> {
        match self {
            Output::Value(()) => Output::Value(value),
            Output::Checked((), check) | Output::Later(check) => Output::Checked(value, check),
        }
    }
}
