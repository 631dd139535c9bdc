//! The product C ← α·op(A)·op(B) + β·C, column-major, as a kernel of the software CUDA driver.

use crate::driver::{SoftKernel, SoftParam, driver};
use crate::status::{Outcome, Status, refused};
use std::ffi::{CStr, c_int, c_void};

const NAME: &CStr = c"softcublas_sgemm";

/// The arguments of a product, in the order in which the kernel takes them.
pub(crate) struct Sgemm {
    pub(crate) transposed: [u32; 2],
    pub(crate) sizes: [u32; 3],
    pub(crate) factors: [f32; 2],
    pub(crate) pitches: [u32; 3],
    /// 1 if A and B are rounded to TF32 first, otherwise 0.
    pub(crate) tf32: u32,
    /// The addresses of A, B and C.
    pub(crate) addresses: [u64; 3],
}

/// The number of values before the addresses.
const VALUES: usize = 11;

impl Sgemm {
    /// Returns the rows and columns of each matrix as it is stored.
    fn stored(&self) -> [[u32; 2]; 3] {
        let [m, n, k] = self.sizes;
        let turned = |turn: u32, [rows, cols]: [u32; 2]| if turn != 0 { [cols, rows] } else { [rows, cols] };
        [turned(self.transposed[0], [m, k]), turned(self.transposed[1], [k, n]), [m, n]]
    }

    /// Returns true if each leading dimension has room for a column.
    pub(crate) fn has_sound_pitches(&self) -> bool {
        self.stored().iter().zip(self.pitches).all(|([rows, _], pitch)| pitch >= (*rows).max(1))
    }

    /// Returns the number of elements that each matrix spans.
    fn lens(&self) -> [u64; 3] {
        let mut lens = [0; 3];
        for (len, ([rows, cols], pitch)) in lens.iter_mut().zip(self.stored().into_iter().zip(self.pitches)) {
            if rows > 0 && cols > 0 {
                *len = u64::from(cols - 1) * u64::from(pitch) + u64::from(rows);
            }
        }
        lens
    }

    /// Launches the product. The stream's context is current and is that of `function`.
    pub(crate) fn launch(mut self, function: u64, stream: u64) -> Outcome {
        let mut lens = self.lens();
        let Sgemm { transposed, sizes, factors, pitches, tf32, addresses } = &mut self;
        let mut params: Vec<*mut c_void> = Vec::with_capacity(VALUES + 6);
        params.extend(transposed.iter_mut().map(|value| std::ptr::from_mut(value).cast()));
        params.extend(sizes.iter_mut().map(|value| std::ptr::from_mut(value).cast()));
        params.extend(factors.iter_mut().map(|value| std::ptr::from_mut(value).cast()));
        params.extend(pitches.iter_mut().map(|value| std::ptr::from_mut(value).cast()));
        params.push(std::ptr::from_mut(tf32).cast());
        params.extend(addresses.iter_mut().map(|value| std::ptr::from_mut(value).cast()));
        params.extend(lens.iter_mut().map(|value| std::ptr::from_mut(value).cast()));
        // SAFETY: `cuLaunchKernel` takes a live function and stream, and a pointer to each of the
        // kernel's parameters and to each length after them. It copies what they point to.
        let code = unsafe {
            let none = std::ptr::null_mut();
            (driver()?.cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), none)
        };
        if code == 0 {
            return Ok(());
        }
        refused(Status::EXECUTION_FAILED, &format!("cuLaunchKernel returned {code}"))
    }
}

/// Writes to both ends of a lent workspace, so that other users of that memory notice.
pub(crate) fn scribble(workspace: u64, bytes: usize, stream: u64) -> Outcome {
    let end = bytes.min(256);
    for at in [workspace, workspace + (bytes - end) as u64] {
        // SAFETY: `cuMemsetD8Async` takes device memory and a stream, and checks both.
        let code = if end > 0 { unsafe { (driver()?.cuMemsetD8Async)(at, 0xa5, end, stream) } } else { 0 };
        if code != 0 {
            return refused(
                Status::EXECUTION_FAILED,
                &format!("cuMemsetD8Async of the workspace returned {code}"),
            );
        }
    }
    Ok(())
}

/// Registers the kernel with the driver, loads it into the current context and returns its
/// function.
pub(crate) fn load() -> Outcome<u64> {
    let driver = driver()?;
    let value = || SoftParam { bytes: 4, kind: 0, element_bytes: 0 };
    let pointer = |kind| SoftParam { bytes: 8, kind, element_bytes: 4 };
    let params: Vec<SoftParam> = (0..VALUES).map(|_| value()).chain([1, 1, 2].map(pointer)).collect();
    let kernel = SoftKernel {
        name: NAME.as_ptr(),
        params: params.as_ptr(),
        param_count: params.len(),
        extra_count: 3,
        twin,
        user: std::ptr::null(),
    };
    // SAFETY: the entry point reads the description, whose parts live until it returns.
    let registered = unsafe { (driver.softcudaRegisterKernel)(&raw const kernel) };
    let declared: Vec<_> = params
        .iter()
        .enumerate()
        .map(|(i, param)| format!(".param .u{} softcublas_sgemm_param_{i}", 8 * param.bytes))
        .collect();
    let text = format!(
        ".version 8.0\n.target sm_60\n.address_size 64\n\n.visible .entry softcublas_sgemm(\n{}\n)\n{{\n\tret;\n}}\n\0",
        declared.join(",\n")
    );
    let (mut module, mut function) = (0, 0);
    // SAFETY: `cuModuleLoadData` reads PTX text that ends with a NUL, and writes a module.
    let loaded = unsafe { (driver.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) };
    // SAFETY: `cuModuleGetFunction` takes a module, which it checks, and a C string, and writes a
    // function.
    let found = unsafe { (driver.cuModuleGetFunction)(&raw mut function, module, NAME.as_ptr()) };
    if [registered, loaded, found] != [0; 3] {
        let why = format!("its kernel was not loaded: {registered}, {loaded} and {found}");
        return refused(Status::INTERNAL_ERROR, &why);
    }
    Ok(function)
}

/// Runs the product on the CPU, when the driver calls it.
unsafe extern "C" fn twin(
    params: *const *const c_void,
    _launch: *const c_void,
    _user: *const c_void,
) -> c_int {
    // SAFETY: the driver passes a pointer to the bytes of each parameter.
    let param = |i: usize| unsafe { *params.wrapping_add(i) };
    // SAFETY: the first parameters have four bytes.
    let value = |i: usize| unsafe { *param(i).cast::<u32>() };
    // SAFETY: the others have eight bytes, host addresses in place of the device's.
    let address = |i: usize| unsafe { *param(VALUES + i).cast::<u64>() };
    let sgemm = Sgemm {
        transposed: [0, 1].map(value),
        sizes: [2, 3, 4].map(value),
        factors: [5, 6].map(value).map(f32::from_bits),
        pitches: [7, 8, 9].map(value),
        tf32: value(10),
        addresses: [0, 1, 2].map(address),
    };
    let [a_len, b_len, c_len] = sgemm.lens().map(|len| len as usize);
    // SAFETY: the driver has checked that A has so many elements. The program orders work that
    // writes them.
    let a = unsafe { slice(sgemm.addresses[0] as *const f32, a_len) };
    // SAFETY: the driver has checked that B has so many elements. The program orders work that
    // writes them.
    let b = unsafe { slice(sgemm.addresses[1] as *const f32, b_len) };
    if c_len > 0 {
        // SAFETY: the driver has checked that C has so many elements. The program orders its work,
        // so that nothing else touches them.
        let c = unsafe { std::slice::from_raw_parts_mut(sgemm.addresses[2] as *mut f32, c_len) };
        multiply(&sgemm, a, b, c);
    }
    0
}

/// # Safety
/// `address` points to `len` elements, which nothing writes during `'a`.
unsafe fn slice<'a>(address: *const f32, len: usize) -> &'a [f32] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller promises `len` elements, which nothing writes during `'a`.
    unsafe { std::slice::from_raw_parts(address, len) }
}

fn multiply(sgemm: &Sgemm, a: &[f32], b: &[f32], c: &mut [f32]) {
    let ([m, n, k], [alpha, beta]) = (sgemm.sizes.map(|size| size as usize), sgemm.factors);
    let round = |x: f32| if sgemm.tf32 != 0 { to_tf32(x) } else { x };
    let element = |matrix: &[f32], which: usize, row: usize, col: usize| {
        let (row, col) = if sgemm.transposed[which] != 0 { (col, row) } else { (row, col) };
        round(matrix[col * sgemm.pitches[which] as usize + row])
    };
    for (row, col) in (0..n).flat_map(|col| (0..m).map(move |row| (row, col))) {
        let sum: f32 = (0..k).map(|i| element(a, 0, row, i) * element(b, 1, i, col)).sum();
        let c = &mut c[col * sgemm.pitches[2] as usize + row];
        // With β = 0 the previous value is not read.
        *c = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *c };
    }
}

/// Returns the nearest number with ten bits of fraction. Of two equally near, returns the one
/// farther from 0.
fn to_tf32(x: f32) -> f32 {
    const LOST: u32 = 13;
    if !x.is_finite() {
        return x;
    }
    f32::from_bits((x.to_bits() + (1 << (LOST - 1))) & !((1 << LOST) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_major_product_with_pitches_and_a_transposed_factor() {
        let sgemm = Sgemm {
            transposed: [0, 1],
            sizes: [2, 2, 3],
            factors: [2.0, 1.0],
            pitches: [3, 2, 2],
            tf32: 0,
            addresses: [0; 3],
        };
        assert!(sgemm.has_sound_pitches());
        assert_eq!(sgemm.lens(), [8, 6, 4]);
        // Columns of two, three apart: 1 2 3 above 4 5 6.
        let a = [1.0, 4.0, f32::NAN, 2.0, 5.0, f32::NAN, 3.0, 6.0];
        // Stored as two rows: the transpose of a 3 × 2 matrix with columns 1 0 1 and 0 1 2.
        let b = [1.0, 0.0, 0.0, 1.0, 1.0, 2.0];
        let mut c = [10.0, 20.0, 30.0, 40.0];
        multiply(&sgemm, &a, &b, &mut c);
        assert_eq!(c, [18.0, 40.0, 46.0, 74.0]);
    }

    #[test]
    fn tf32_keeps_ten_bits_of_fraction() {
        assert_eq!(to_tf32(1.0 + 1.0 / 1024.0), 1.0 + 1.0 / 1024.0);
        assert_eq!(to_tf32(1.0 + 1.0 / 4096.0), 1.0);
        assert_eq!(to_tf32(-1.0 - 1.0 / 2048.0), -1.0 - 1.0 / 1024.0);
        assert_eq!(to_tf32(f32::INFINITY), f32::INFINITY);
    }
}
