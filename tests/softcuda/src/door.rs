//! The common entry path of the driver's functions.
//!
//! It counts the call, lets the plan fail it, keeps panics from crossing into C, and writes a
//! caller's mistake to stderr.

use crate::capture;
use crate::context;
use crate::counts;
use crate::ending;
use crate::entries::{Entry, NAMES};
use crate::errors::{Code, Failure, Outcome, say};
use crate::plan;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// True from the first successful `cuInit` until the [exit handler](ending) begins.
pub(crate) static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Runs the body of an entry point, after the checks that all entry points share.
#[inline]
pub(crate) fn enter(entry: Entry, body: impl FnOnce() -> Outcome) -> Code {
    counts::count(entry);
    if plan::get().is_stub {
        return Code::STUB_LIBRARY;
    }
    if let Some(code) = plan::get().failures.planned(entry) {
        return planned(entry, code);
    }
    if !entry.works_always() {
        if !INITIALISED.load(Ordering::Acquire) {
            return if ending::has_ended() { ending::late(entry) } else { Code::NOT_INITIALIZED };
        }
        if context::in_host_function() {
            return told(entry, Code::NOT_PERMITTED, "called from a host function");
        }
    }
    if plan::get().capture_strict
        && capture::any()
        && entry.may_be_unsafe()
        && let Err(Failure { code, why }) = capture::refuse_unsafe()
    {
        return told(entry, code, &why.unwrap_or_default());
    }
    let turn = plan::get().one_at_a_time.then(|| context::take_turn(entry)).flatten();
    let outcome = catch_unwind(AssertUnwindSafe(body));
    drop(turn);
    match outcome {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(Failure { code, why: None })) => code,
        Ok(Err(Failure { code, why: Some(why) })) => told(entry, code, &why),
        Err(_) => told(entry, Code::UNKNOWN, "this library has a bug: it panicked"),
    }
}

#[cold]
fn planned(entry: Entry, failure: plan::Planned) -> Code {
    if failure.sticky
        && let Some(context) = context::current_if_any()
    {
        context.poison(failure.code, NAMES[entry as usize]);
    }
    failure.code
}

#[cold]
fn told(entry: Entry, code: Code, why: &str) -> Code {
    say(&format!("{}: {}: {why}", NAMES[entry as usize], code.name()));
    code
}

/// Declares C entry points whose bodies return [`Outcome`].
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> $crate::errors::Code {
            $crate::door::enter($crate::entries::Entry::$name, move || -> $crate::errors::Outcome { $body })
        }
    )*};
}
pub(crate) use exports;
