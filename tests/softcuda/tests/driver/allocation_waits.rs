//! `SOFTCUDA_ALLOC_WAITS=1`: calls that wait for the device.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, calls, register};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

const WAITS: (&str, &str) = ("SOFTCUDA_ALLOC_WAITS", "1");

/// Loads a module with the kernel `add`.
fn load() -> u64 {
    let (mut module, text) = (std::ptr::null_mut(), CString::new(ADD).unwrap());
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module as u64
}

/// Makes a call on another thread while a gate is closed. Returns true if the call returns before
/// the gate opens.
fn returns_early(entry_point: &str, call: impl FnOnce() + Send) -> bool {
    let (context, held, free, word) = (start() as u64, stream(), stream(), Word::new());
    let gate = Gate::on(held);
    let returned = AtomicBool::new(false);
    let before = calls(entry_point);
    let early = std::thread::scope(|scope| {
        scope.spawn(|| {
            ok!(cuCtxSetCurrent(context as _));
            call();
            returned.store(true, Ordering::SeqCst);
        });
        while calls(entry_point) == before {
            std::thread::yield_now();
        }
        // Other calls still return. There are enough of them for `call` to return meanwhile, if it
        // can.
        for value in 1..1000 {
            word.written_by(free, value);
            ok!(cuStreamSynchronize(free));
            std::thread::yield_now();
        }
        let early = returned.load(Ordering::SeqCst);
        gate.open();
        early
    });
    ok!(cuStreamSynchronize(held));
    early
}

/// An entry point and a call of it.
type Call = (&'static str, fn(module: u64));

const CALLS: [Call; 5] = [
    ("cuMemAlloc_v2", |_| {
        alloc(8);
    }),
    ("cuMemHostAlloc", |_| {
        pinned(8);
    }),
    ("cuMemHostRegister_v2", |_| {
        let memory = Box::leak(Box::new([0u64; 8]));
        ok!(cuMemHostRegister_v2(memory.as_mut_ptr().cast(), 64, 0));
    }),
    ("cuModuleLoadData", |_| {
        load();
    }),
    ("cuModuleGetFunction", find),
];

fn find(module: u64) {
    ok!(cuModuleGetFunction(&mut std::ptr::null_mut(), module as _, c"add".as_ptr()));
}

/// Makes a context current, registers the twin of `add`, and returns a module with `add`.
fn started() -> u64 {
    start();
    assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
    load()
}

#[test]
fn what_allocates_page_locks_or_loads_waits_for_the_device() {
    let said = in_child(&[WAITS], || {
        let module = started();
        for (entry_point, call) in CALLS {
            assert!(!returns_early(entry_point, || call(module)), "{entry_point}");
        }
    });
    assert!(said.contains("cuMemAlloc waits for the device on thread"), "{said}");
}

#[test]
fn without_the_setting_none_of_that_waits() {
    in_child(&[], || {
        let (module, held) = (started(), stream());
        let gate = Gate::on(held);
        for (_, call) in CALLS {
            call(module);
        }
        assert_eq!(cu!(cuStreamQuery(held)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(held));
    });
}

#[test]
fn a_function_that_was_loaded_is_found_at_once() {
    in_child(&[WAITS], || {
        let (module, held, word) = (started(), stream(), Word::new());
        find(module);
        ok!(cuStreamWaitValue64_v2(held, word.address(), 1, 0));
        find(module);
        word.store(1);
        ok!(cuStreamSynchronize(held));
    });
}
