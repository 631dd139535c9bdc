//! `SOFTCUDA_IMMEDIATE=1`: calls do their bookkeeping, and nothing runs.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, register};

#[test]
fn words_are_stored_at_the_call_and_nothing_runs() {
    in_child(&[("SOFTCUDA_IMMEDIATE", "1")], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, stream, word, event) = (function(ADD, "add").unwrap(), stream(), Word::new(), event());
        let mut x = 0;
        ok!(cuMemAlloc_v2(&mut x, 16));
        assert_eq!(launch_add(kernel, stream, 0xdead, 1.0, 1), 0, "its twin does not run");
        word.written_by(stream, 5);
        assert_eq!(word.load(), 5);
        ok!(cuEventRecord(event, stream));
        ok!(cuEventQuery(event));
        ok!(cuStreamWaitValue64_v2(stream, word.address(), 9, 0));
        ok!(cuStreamQuery(stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuCtxSynchronize());
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert!(threads <= 2, "{threads} threads");
        ok!(cuMemFree_v2(x));
        ok!(cuStreamDestroy_v2(stream));
        assert_eq!(launch_add(kernel, stream, x, 1.0, 1), INVALID_HANDLE, "handles are checked all the same");
    });
}
