//! cuBLAS on a stream of ours.

use crate::foreign::{cu_stream, cuda};
use std::ffi::{CStr, CString, c_int, c_void};
use warpline::{reads, writes};

/// Where to find the library, if the loader does not: `$(python3 -c "import nvidia.cublas.lib as l; print(l.__path__[0])")` and
/// `/libcublas.so.12`, where it came from PyPI.
const PATH: &str = "WARPLINE_TEST_CUBLAS";

type Handle = *mut c_void;

type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
/// The handle, whether either is transposed, m, n, k, α, A and its leading dimension, B and its, β, C and its.
type Sgemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    *const f32,
    *mut f32,
    c_int,
) -> c_int;

/// The entry points used here, of version 12 or 13: cublas_v2.h.
struct Cublas {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    sgemm: Sgemm,
}

impl Cublas {
    fn open() -> Self {
        let given = std::env::var(PATH).ok().map(|path| CString::new(path).expect("a path without NUL"));
        let names = [c"libcublas.so.13", c"libcublas.so.12", c"libcublas.so"].map(CStr::to_owned);
        let library = given
            .into_iter()
            .chain(names)
            // SAFETY: the library's initialisers are its own.
            .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
            .find(|library| !library.is_null())
            .unwrap_or_else(|| {
                panic!("no libcublas.so.13 or .12 for the loader to find; say with {PATH} where it is")
            });
        let symbol = |name: &CStr| {
            // SAFETY: a library that is never closed, and a string.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!symbol.is_null(), "{name:?}");
            symbol
        };
        Cublas {
            // SAFETY: the library declares it so.
            create: unsafe { std::mem::transmute::<*mut c_void, Create>(symbol(c"cublasCreate_v2")) },
            // SAFETY: as above.
            destroy: unsafe { std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cublasDestroy_v2")) },
            // SAFETY: as above.
            set_stream: unsafe {
                std::mem::transmute::<*mut c_void, SetStream>(symbol(c"cublasSetStream_v2"))
            },
            // SAFETY: as above.
            sgemm: unsafe { std::mem::transmute::<*mut c_void, Sgemm>(symbol(c"cublasSgemm_v2")) },
        }
    }
}

/// Needs a GPU: the library brings kernels of its own, which the software CUDA driver cannot run. So nothing runs this test but a
/// machine that has both: `cargo test --test cuda -- --ignored foreign::cublas`.
#[test]
#[ignore = "needs a GPU and cuBLAS"]
fn a_product_by_cublas_is_one_op_of_our_stream() {
    let (m, n, k) = (96, 80, 64);
    let cublas = Cublas::open();
    let device = cuda(0);
    let (stream, copy) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    // Column by column, as cuBLAS has it.
    let a: Vec<f32> = (0..m * k).map(|i| (i % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let [x, y] = [&a, &b].map(|values| {
        let buffer = copy.alloc::<f32>(values.len()).unwrap();
        drop(copy.write(&buffer, values));
        buffer
    });
    stream.wait_stream(&copy);
    let z = stream.alloc::<f32>(m * n).unwrap();

    let mut handle = std::ptr::null_mut();
    let (mut worked, (one, zero)) = (true, (1.0f32, 0.0f32));
    // SAFETY: the product is enqueued on this stream, reads `x` and `y` and writes `z`, which are that long.
    let done = unsafe {
        stream.external(reads([&x, &y]), writes([&z]), |raw| {
            // Made here, where the device's context is current.
            let created = (cublas.create)(&raw mut handle);
            let set = (cublas.set_stream)(handle, cu_stream(raw).cast());
            let enqueued = (cublas.sgemm)(
                handle,
                0,
                0,
                m as c_int,
                n as c_int,
                k as c_int,
                &raw const one,
                x.device_ptr().0 as *const f32,
                m as c_int,
                y.device_ptr().0 as *const f32,
                k as c_int,
                &raw const zero,
                z.device_ptr().0 as *mut f32,
                m as c_int,
            );
            if [created, set, enqueued] != [0; 3] {
                worked = false;
                raw.fail(format!("cuBLAS answered {created}, {set} and {enqueued}"));
            }
        })
    };
    done.blocking_wait().unwrap();
    assert!(worked);
    let expected: Vec<f32> =
        (0..m * n).map(|i| (0..k).map(|j| a[j * m + i % m] * b[i / m * k + j]).sum()).collect();
    assert_eq!(stream.read(&z).blocking_wait().unwrap(), expected, "sums of small whole numbers are exact");
    // SAFETY: a handle that was made, and whose work is done.
    assert_eq!(unsafe { (cublas.destroy)(handle) }, 0);
}
