//! Functions of this library that are not part of the driver's API.

use crate::abi::{In, Text};
use crate::context;
use crate::counts;
use crate::door::exports;
use crate::ending;
use crate::entries::Entry;
use crate::kernel::{Registration, register};
use crate::stream;

exports! {
    fn softcudaRegisterKernel(kernel: In<Registration>) {
        register(kernel.get()?)
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaCallCount(entry_point: Text) -> u64 {
    let index = entry_point.get().ok().and_then(|name| Entry::index_of(&name));
    index.map_or(u64::MAX, |index| counts::all()[index])
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaThreadCallCount(entry_point: Text) -> u64 {
    let index = entry_point.get().ok().and_then(|name| Entry::index_of(&name));
    index.map_or(u64::MAX, counts::of_this_thread)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaWaitsForRoom() -> u64 {
    stream::waits_for_room()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaWaitsForDevice() -> u64 {
    context::waits_for_device()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaLateCalls() -> u64 {
    ending::late_calls()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaResetCounts() {
    counts::reset();
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn softcudaPrintCounts() {
    counts::print();
}
