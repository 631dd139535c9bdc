//! Elementwise arithmetic on two operands, or on an operand and a scalar.
//!
//! For an operator ∘, the kernels compute z ← x ∘ y, with `y` repeated along `x`, and y ← x ∘ a.
//!
//! Each kernel reads 8 bytes and writes 4 bytes per f32 element, and twice as many per f64 or i64
//! element.
//! With a scalar it reads 4 bytes per f32 element. Integers wrap around at the ends of the range.
//! The device code is in the operator's file.

/// Declares the kernel with two operands for one element type.
///
/// The arguments are the type, the file, the sign, the names, and the formula.
macro_rules! binary {
    ($ty:ty, $file:literal, $sign:literal, $name:ident $descriptor:ident, $formula:expr) => {
        warpline_runtime::kernel! {
            #[doc = concat!(
                "z\\[i\\] ← x\\[i\\] ", $sign, " y\\[i mod `period`\\], for `n` elements. `z` may be `x`, or `y` where `period` is `n`."
            )]
            pub in_place unsafe fn $name(n: u64, period: u64, x: &[$ty], y: &[$ty], write z: &mut [$ty])
            where n == x.len() as u64
                && n == z.len() as u64
                && period == y.len() as u64
                && (n == 0 || n.is_multiple_of(period))
            {
                descriptor: $descriptor,
                ptx_from_sm_60: include_str!(concat!("../ptx/", $file)),
                cpu: |_, _, x, y, z| $crate::cells::zip(x, y, z, $formula),
            }
        }
    };
}

/// Declares the kernel with an operand and a scalar, from the same arguments.
macro_rules! scalar {
    ($ty:ty, $file:literal, $sign:literal, $name:ident $descriptor:ident, $formula:expr) => {
        warpline_runtime::kernel! {
            #[doc = concat!("y ← x ", $sign, " a, for `n` elements. `y` may be `x`.")]
            pub in_place unsafe fn $name(n: u64, x: &[$ty], a: $ty, write y: &mut [$ty])
            where n == x.len() as u64 && n == y.len() as u64
            {
                descriptor: $descriptor,
                ptx_from_sm_60: include_str!(concat!("../ptx/", $file)),
                cpu: |_, x, a, y| $crate::cells::map(x, y, |x| $formula(x, a)),
            }
        }
    };
}

binary!(f32, "add.ptx", "+", add ADD, |x, y| x + y);
binary!(f64, "add.ptx", "+", add_f64 ADD_F64, |x, y| x + y);
binary!(i64, "add.ptx", "+", add_i64 ADD_I64, i64::wrapping_add);
binary!(f32, "sub.ptx", "−", sub SUB, |x, y| x - y);
binary!(f64, "sub.ptx", "−", sub_f64 SUB_F64, |x, y| x - y);
binary!(i64, "sub.ptx", "−", sub_i64 SUB_I64, i64::wrapping_sub);
binary!(f32, "mul.ptx", "·", mul MUL, |x, y| x * y);
binary!(f64, "mul.ptx", "·", mul_f64 MUL_F64, |x, y| x * y);
binary!(i64, "mul.ptx", "·", mul_i64 MUL_I64, i64::wrapping_mul);
binary!(f32, "divide.ptx", "/", divide DIVIDE, |x, y| x / y);
binary!(f64, "divide.ptx", "/", divide_f64 DIVIDE_F64, |x, y| x / y);
scalar!(f32, "add.ptx", "+", add_scalar ADD_SCALAR, |x, a| x + a);
scalar!(f64, "add.ptx", "+", add_scalar_f64 ADD_SCALAR_F64, |x, a| x + a);
scalar!(i64, "add.ptx", "+", add_scalar_i64 ADD_SCALAR_I64, i64::wrapping_add);
scalar!(f32, "mul.ptx", "·", mul_scalar MUL_SCALAR, |x, a| x * a);
scalar!(f64, "mul.ptx", "·", mul_scalar_f64 MUL_SCALAR_F64, |x, a| x * a);
scalar!(i64, "mul.ptx", "·", mul_scalar_i64 MUL_SCALAR_I64, i64::wrapping_mul);
scalar!(f32, "divide.ptx", "/", divide_scalar DIVIDE_SCALAR, |x, a| x / a);
scalar!(f64, "divide.ptx", "/", divide_scalar_f64 DIVIDE_SCALAR_F64, |x, a| x / a);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{read, run, value, written};
    use warpline_runtime::kernel::Kernel;

    /// A kernel and its formula for two elements.
    type Formula<T> = (&'static Kernel, fn(T, T) -> T);

    const BINARY: [Formula<f32>; 4] =
        [(&ADD, |x, y| x + y), (&SUB, |x, y| x - y), (&MUL, |x, y| x * y), (&DIVIDE, |x, y| x / y)];
    const OF_F64: [Formula<f64>; 4] = [
        (&ADD_F64, |x, y| x + y),
        (&SUB_F64, |x, y| x - y),
        (&MUL_F64, |x, y| x * y),
        (&DIVIDE_F64, |x, y| x / y),
    ];
    const OF_INTEGERS: [Formula<i64>; 3] =
        [(&ADD_I64, i64::wrapping_add), (&SUB_I64, i64::wrapping_sub), (&MUL_I64, i64::wrapping_mul)];

    #[test]
    fn agrees_with_the_formula_at_every_length_and_period() {
        for (kernel, formula) in BINARY {
            for (rows, period) in [(0usize, 0usize), (0, 3), (1, 1), (7, 1), (1, 65), (5, 33), (3, 1001)] {
                let x: Vec<f32> = (0..rows * period).map(|i| i as f32 / 3.0).collect();
                let y: Vec<f32> = (0..period).map(|i| 10.0 - i as f32).collect();
                let mut z = vec![f32::NAN; x.len()];
                run(
                    kernel,
                    &[value(x.len() as u64), value(period as u64), read(&x), read(&y), written(&mut z)],
                );
                let expected: Vec<f32> = (0..x.len()).map(|i| formula(x[i], y[i % period])).collect();
                assert_eq!(z, expected, "{}", kernel.name);
            }
        }
    }

    #[test]
    fn f64_keeps_all_its_bits() {
        for (kernel, formula) in OF_F64 {
            let (x, y, mut z) = ([0.1, 1e300, -7.0], [0.2, 1e10, 3.0], [0.0; 3]);
            run(kernel, &[value(3u64), value(3u64), read(&x), read(&y), written(&mut z)]);
            assert_eq!(z, std::array::from_fn(|i| formula(x[i], y[i])), "{}", kernel.name);
        }
        let scalar: [Formula<f64>; 3] = [
            (&ADD_SCALAR_F64, |x, y| x + y),
            (&MUL_SCALAR_F64, |x, y| x * y),
            (&DIVIDE_SCALAR_F64, |x, y| x / y),
        ];
        for (kernel, formula) in scalar {
            let (x, mut z) = ([0.1, 1e300, -7.0], [0.0; 3]);
            run(kernel, &[value(3u64), read(&x), value(0.3f64), written(&mut z)]);
            assert_eq!(z, x.map(|x| formula(x, 0.3)), "{}", kernel.name);
        }
    }

    #[test]
    fn integers_wrap_around() {
        for (kernel, formula) in OF_INTEGERS {
            let (x, y, mut z) = ([i64::MAX, i64::MIN, 7], [2, 1, -3], [0; 3]);
            run(kernel, &[value(3u64), value(3u64), read(&x), read(&y), written(&mut z)]);
            assert_eq!(z, std::array::from_fn(|i| formula(x[i], y[i])), "{}", kernel.name);
        }
    }

    #[test]
    fn a_scalar_is_the_same_for_every_element() {
        let (x, mut y) = ([1.0f32, -2.0], [0.0f32; 2]);
        run(&ADD_SCALAR, &[value(2u64), read(&x), value(0.5f32), written(&mut y)]);
        assert_eq!(y, [1.5, -1.5]);
        run(&MUL_SCALAR, &[value(2u64), read(&x), value(0.5f32), written(&mut y)]);
        assert_eq!(y, [0.5, -1.0]);
        run(&DIVIDE_SCALAR, &[value(2u64), read(&x), value(0.0f32), written(&mut y)]);
        assert_eq!(y, [f32::INFINITY, f32::NEG_INFINITY]);
        let (x, mut y) = ([i64::MAX, 3], [0i64; 2]);
        run(&ADD_SCALAR_I64, &[value(2u64), read(&x), value(1i64), written(&mut y)]);
        assert_eq!(y, [i64::MIN, 4]);
        run(&MUL_SCALAR_I64, &[value(2u64), read(&x), value(2i64), written(&mut y)]);
        assert_eq!(y, [-2, 6]);
    }
}
