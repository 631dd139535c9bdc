//! Events.

use crate::abi::{CUevent, CUstream, Out};
use crate::door::exports;
use crate::errors::refuse;
use crate::{capture, event, stream};

/// `CU_EVENT_RECORD_EXTERNAL`.
const EXTERNAL: u32 = 1;

exports! {
    fn cuEventCreate(out: Out<CUevent>, flags: u32) {
        out.set(event::create(flags)?)
    }

    fn cuEventDestroy_v2(event: CUevent) {
        event::destroy(event)
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        event::record(event, stream)
    }

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) {
        if flags > 1 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        if flags == EXTERNAL {
            capture::refuse_uncaptured(stream::named(stream)?, "a record that is seen outside")?;
        }
        event::record(event, stream)
    }

    fn cuEventQuery(event: CUevent) {
        event::query(event)
    }

    fn cuEventSynchronize(event: CUevent) {
        event::synchronize(event)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        milliseconds.set(event::elapsed(start, end)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        milliseconds.set(event::elapsed(start, end)?)
    }
}
