//! The interface between Warpline and a device, for backends of your own.
//!
//! It re-exports the crate `warpline-driver`, which is all that such a backend needs.

pub use warpline_driver::{
    Claim, Command, Completion, Copy, CopyKind, DeviceProperties, DevicePtr, Driver, DriverError,
    DriverEvent, DriverFailure, DriverGraph, DriverStream, Fill, FreeMemory, Health, HostFn, Launch, Plan,
    PlanStream, Point, Priority, RawHandle, StagedCopy, StagedStep, Stamp, Step, StreamOptions, Submission,
    WakeUp, Work, copy_rows,
};
