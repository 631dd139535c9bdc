//! What a panic said, for the error it becomes.

use std::any::Any;

/// What a panic said.
pub fn message_of(panic: Box<dyn Any + Send>) -> String {
    let message = match panic.downcast::<&'static str>() {
        Ok(text) => return (*text).to_owned(),
        Err(panic) => panic.downcast::<String>(),
    };
    match message {
        Ok(text) => *text,
        Err(other) => {
            // Dropping somebody's panic value may panic again; what that leaves is not looked at.
            if let Err(again) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(other))) {
                std::mem::forget(again);
            }
            "a value that is not text".to_owned()
        }
    }
}
