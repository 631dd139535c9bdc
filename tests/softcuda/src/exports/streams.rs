//! Streams, stream memory operations and capture.

use crate::abi::{CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUstream, InOut, Out};
use crate::door::exports;
use crate::errors::refuse;
use crate::{capture, event, memops, stream};
use std::ffi::c_int;

exports! {
    fn cuStreamCreate(out: Out<CUstream>, flags: u32) {
        out.set(stream::create(flags, 0)?)
    }

    fn cuStreamCreateWithPriority(out: Out<CUstream>, flags: u32, priority: c_int) {
        out.set(stream::create(flags, priority)?)
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        stream::destroy(stream)
    }

    fn cuStreamQuery(stream: CUstream) {
        let stream = stream::named(stream)?;
        capture::refuse_on(stream)?;
        stream.refuse_if_captures_are_behind()?;
        stream.query()
    }

    fn cuStreamSynchronize(stream: CUstream) {
        let stream = stream::named(stream)?;
        capture::refuse_on(stream)?;
        stream.refuse_if_captures_are_behind()?;
        stream.wait_until_done()
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) {
        event::wait(stream, event, flags)
    }

    fn cuStreamGetCtx(stream: CUstream, out: Out<CUcontext>) {
        out.set(stream::named(stream)?.context_handle())
    }

    fn cuStreamGetPriority(stream: CUstream, out: Out<c_int>) {
        out.set(stream::named(stream)?.priority())
    }

    fn cuStreamGetFlags(stream: CUstream, out: Out<u32>) {
        out.set(stream::named(stream)?.flags())
    }

    fn cuStreamGetId(stream: CUstream, id: Out<u64>) {
        id.set(stream::named(stream)?.index as u64 + 1)
    }

    fn cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) {
        memops::write(stream, address, value as u64, false, flags)
    }

    fn cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) {
        memops::write(stream, address, value, true, flags)
    }

    fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) {
        memops::wait(stream, address, value as u64, false, flags)
    }

    fn cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) {
        memops::wait(stream, address, value, true, flags)
    }

    // Version 1 of stream memory operations. Drivers export the symbols but refuse the calls.

    fn cuStreamWriteValue32(_stream: CUstream, _address: CUdeviceptr, _value: u32, _flags: u32) {
        refuse!(NOT_SUPPORTED, "version 1; ask for cuStreamWriteValue32_v2")
    }

    fn cuStreamWriteValue64(_stream: CUstream, _address: CUdeviceptr, _value: u64, _flags: u32) {
        refuse!(NOT_SUPPORTED, "version 1; ask for cuStreamWriteValue64_v2")
    }

    fn cuStreamWaitValue32(_stream: CUstream, _address: CUdeviceptr, _value: u32, _flags: u32) {
        refuse!(NOT_SUPPORTED, "version 1; ask for cuStreamWaitValue32_v2")
    }

    fn cuStreamWaitValue64(_stream: CUstream, _address: CUdeviceptr, _value: u64, _flags: u32) {
        refuse!(NOT_SUPPORTED, "version 1; ask for cuStreamWaitValue64_v2")
    }

    fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32) {
        capture::begin(stream, mode)
    }

    fn cuStreamEndCapture(stream: CUstream, out: Out<CUgraph>) {
        match capture::end(stream) {
            Ok(graph) => out.set(graph),
            Err(failure) => {
                out.set_if_asked(CUgraph(0));
                Err(failure)
            }
        }
    }

    fn cuStreamIsCapturing(stream: CUstream, out: Out<u32>) {
        out.set(capture::info(stream::named(stream)?).status)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>,
        count: Out<usize>,
    ) {
        let info = capture::info(stream::named(stream)?);
        id.set_if_asked(info.id);
        graph.set_if_asked(info.graph);
        dependencies.set_if_asked(info.dependencies.0);
        count.set_if_asked(info.dependencies.1);
        status.set(info.status)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: InOut<u32>) {
        let before = capture::exchange_mode(mode.get()?)?;
        mode.set(before)
    }
}
