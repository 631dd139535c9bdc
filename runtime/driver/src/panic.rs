//! The text of a panic, for the error that it becomes.

use std::any::Any;

/// Returns the text of a panic.
pub fn message_of(panic: Box<dyn Any + Send>) -> String {
    let message = match panic.downcast::<&'static str>() {
        Ok(text) => return (*text).to_owned(),
        Err(panic) => panic.downcast::<String>(),
    };
    match message {
        Ok(text) => *text,
        Err(other) => {
            // Dropping the panic value may panic again. The value of that second panic is not
            // examined.
            if let Err(again) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(other))) {
                std::mem::forget(again);
            }
            "a value that is not text".to_owned()
        }
    }
}
