//! cuBLAS on one of Warpline's streams.

use crate::foreign::{cu_stream, cuda};
use std::ffi::{CStr, CString, c_int, c_void};
use warpline::{reads, writes};

/// The variable that holds the path of the library, for use if the loader does not find it. For the
/// package from PyPI the path is
/// `$(python3 -c "import nvidia.cublas.lib as l; print(l.__path__[0])")/libcublas.so.12`.
const PATH: &str = "WARPLINE_TEST_CUBLAS";

type Handle = *mut c_void;

type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
/// The type of cublasSgemm_v2. The arguments are the handle, the operations on A and B, m, n, k, α,
/// A and its leading dimension, B and its leading dimension, β, C and its leading dimension.
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

/// The entry points of cuBLAS 12 or 13 that the test uses (cublas_v2.h).
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
            // SAFETY: `dlopen` runs the initialisers of the library, here cuBLAS's own.
            .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
            .find(|library| !library.is_null())
            .unwrap_or_else(|| {
                panic!("no libcublas.so.13 or .12 for the loader to find; say with {PATH} where it is")
            });
        let symbol = |name: &CStr| {
            // SAFETY: the library is never closed, and the name ends with a NUL.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!symbol.is_null(), "{name:?}");
            symbol
        };
        Cublas {
            // SAFETY: cublas_v2.h declares cublasCreate_v2 with this type.
            create: unsafe { std::mem::transmute::<*mut c_void, Create>(symbol(c"cublasCreate_v2")) },
            // SAFETY: cublas_v2.h declares cublasDestroy_v2 with this type.
            destroy: unsafe { std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cublasDestroy_v2")) },
            // SAFETY: cublas_v2.h declares cublasSetStream_v2 with this type.
            set_stream: unsafe {
                std::mem::transmute::<*mut c_void, SetStream>(symbol(c"cublasSetStream_v2"))
            },
            // SAFETY: cublas_v2.h declares cublasSgemm_v2 with this type.
            sgemm: unsafe { std::mem::transmute::<*mut c_void, Sgemm>(symbol(c"cublasSgemm_v2")) },
        }
    }
}

/// Needs a GPU, because cuBLAS launches kernels of its own, which the software CUDA driver cannot
/// run: `cargo test -p warpline-tests --test cuda -- --ignored foreign::cublas`.
#[test]
#[ignore = "needs a GPU and cuBLAS"]
fn a_product_by_cublas_is_one_op_of_our_stream() {
    let (m, n, k) = (96, 80, 64);
    let cublas = Cublas::open();
    let device = cuda(0);
    let (stream, copy) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    // Column-major, as cuBLAS expects.
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
    // SAFETY: the product is enqueued on this stream, reads `x` and `y` and writes `z`. The buffers
    // live and have these lengths.
    let done = unsafe {
        stream.external(reads([&x, &y]), writes([&z]), |raw| {
            // The handle is created here, where the device's context is current.
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
                raw.fail(format!("cuBLAS returned {created}, {set} and {enqueued}"));
            }
        })
    };
    done.blocking_wait().unwrap();
    assert!(worked);
    let expected: Vec<f32> =
        (0..m * n).map(|i| (0..k).map(|j| a[j * m + i % m] * b[i / m * k + j]).sum()).collect();
    assert_eq!(stream.read(&z).blocking_wait().unwrap(), expected, "sums of small whole numbers are exact");
    // SAFETY: the handle was created above, and its work has finished.
    assert_eq!(unsafe { (cublas.destroy)(handle) }, 0);
}
