//! Unwind safety: the types that can be used inside `catch_unwind` and after it.
//!
//! The compiler cannot derive this for a type with a lock, a driver or a closure inside. It holds
//! for every handle: no caller's code runs under a lock of this crate, so a panic in the caller
//! leaves each call either done or not begun. The closure that opens a driver is called by `build`
//! alone.

use crate::buffer::Buffer;
use crate::graph::Graph;
use crate::memory::Pinned;
use crate::pending::{Pending, Refusal};
use crate::shared::Stream;
use crate::stream::{Declared, MemoryRef, Permit, StreamBuilder, StreamLease, StreamPool};
use crate::{Device, Edge, Event, Generator, Runtime, RuntimeBuilder};
use std::panic::{RefUnwindSafe, UnwindSafe};
use warpline_driver::Element;

macro_rules! unwind_safe {
    ($($({$($generics:tt)*})? $type:ty),* $(,)?) => {$(
        impl $(<$($generics)*>)? UnwindSafe for $type {}
        impl $(<$($generics)*>)? RefUnwindSafe for $type {}
    )*};
}

unwind_safe! {
    {T: Element} Buffer<T>,
    Declared<'_>,
    Device,
    Edge,
    Event,
    Generator,
    Graph,
    MemoryRef<'_>,
    {T} Pending<T>,
    Permit,
    {T: Element} Pinned<T>,
    Refusal,
    Runtime,
    RuntimeBuilder,
    Stream,
    StreamBuilder,
    StreamLease,
    StreamPool,
}
