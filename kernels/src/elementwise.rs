//! Elementwise arithmetic on two operands, or on an operand and a scalar.
//!
//! For an operator ∘, the kernels compute z ← x ∘ y, with `y` repeated along `x`, and y ← x ∘ a.
//!
//! Each kernel reads 8 bytes and writes 4 bytes per f32 element, and twice as many per i64 element.
//! With a scalar it reads 4 bytes per f32 element. Integers wrap around at the ends of the range.
//! The device code is in the operator's file.

/// Declares the kernels with two operands, for f32 and for i64.
///
/// The arguments are the file, the sign, the operator, the integer operator, and the names.
macro_rules! binary {
    ($file:literal, $sign:literal, $operator:tt, $wrapping:ident,
     $name:ident $descriptor:ident, $name_i64:ident $descriptor_i64:ident) => {
        warpline_runtime::kernel! {
            #[doc = concat!(
                "z\\[i\\] ← x\\[i\\] ", $sign, " y\\[i mod `period`\\], for `n` elements. `z` may be `x`, or `y` where `period` is `n`."
            )]
            pub in_place unsafe fn $name(n: u64, period: u64, x: &[f32], y: &[f32], write z: &mut [f32])
            where n == x.len() as u64
                && n == z.len() as u64
                && period == y.len() as u64
                && (n == 0 || n.is_multiple_of(period))
            {
                descriptor: $descriptor,
                ptx: [include_str!(concat!("../ptx/sm_60/", $file)), include_str!(concat!("../ptx/sm_70/", $file))],
                cpu: |_, _, x, y, z| $crate::cells::zip(x, y, z, |x, y| x $operator y),
            }

            #[doc = concat!("As [`", stringify!($name), "`](fn@", stringify!($name), "), wrapping around at the ends of the range.")]
            pub in_place unsafe fn $name_i64(n: u64, period: u64, x: &[i64], y: &[i64], write z: &mut [i64])
            where n == x.len() as u64
                && n == z.len() as u64
                && period == y.len() as u64
                && (n == 0 || n.is_multiple_of(period))
            {
                descriptor: $descriptor_i64,
                ptx: [include_str!(concat!("../ptx/sm_60/", $file)), include_str!(concat!("../ptx/sm_70/", $file))],
                cpu: |_, _, x, y, z| $crate::cells::zip(x, y, z, i64::$wrapping),
            }
        }
    };
}

/// Declares the kernels with an operand and a scalar, from the same arguments.
macro_rules! scalar {
    ($file:literal, $sign:literal, $operator:tt, $wrapping:ident,
     $name:ident $descriptor:ident, $name_i64:ident $descriptor_i64:ident) => {
        warpline_runtime::kernel! {
            #[doc = concat!("y ← x ", $sign, " a, for `n` elements. `y` may be `x`.")]
            pub in_place unsafe fn $name(n: u64, x: &[f32], a: f32, write y: &mut [f32])
            where n == x.len() as u64 && n == y.len() as u64
            {
                descriptor: $descriptor,
                ptx: [include_str!(concat!("../ptx/sm_60/", $file)), include_str!(concat!("../ptx/sm_70/", $file))],
                cpu: |_, x, a, y| $crate::cells::map(x, y, |x| x $operator a),
            }

            #[doc = concat!("As [`", stringify!($name), "`](fn@", stringify!($name), "), wrapping around at the ends of the range.")]
            pub in_place unsafe fn $name_i64(n: u64, x: &[i64], a: i64, write y: &mut [i64])
            where n == x.len() as u64 && n == y.len() as u64
            {
                descriptor: $descriptor_i64,
                ptx: [include_str!(concat!("../ptx/sm_60/", $file)), include_str!(concat!("../ptx/sm_70/", $file))],
                cpu: |_, x, a, y| $crate::cells::map(x, y, |x| x.$wrapping(a)),
            }
        }
    };
}

binary!("add.ptx", "+", +, wrapping_add, add ADD, add_i64 ADD_I64);
binary!("sub.ptx", "−", -, wrapping_sub, sub SUB, sub_i64 SUB_I64);
binary!("mul.ptx", "·", *, wrapping_mul, mul MUL, mul_i64 MUL_I64);
scalar!("add.ptx", "+", +, wrapping_add, add_scalar ADD_SCALAR, add_scalar_i64 ADD_SCALAR_I64);
scalar!("mul.ptx", "·", *, wrapping_mul, mul_scalar MUL_SCALAR, mul_scalar_i64 MUL_SCALAR_I64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{read, run, value, written};
    use warpline_runtime::kernel::Kernel;

    /// A kernel and its formula for two elements.
    type Formula<T> = (&'static Kernel, fn(T, T) -> T);

    const BINARY: [Formula<f32>; 3] = [(&ADD, |x, y| x + y), (&SUB, |x, y| x - y), (&MUL, |x, y| x * y)];
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
        let (x, mut y) = ([i64::MAX, 3], [0i64; 2]);
        run(&ADD_SCALAR_I64, &[value(2u64), read(&x), value(1i64), written(&mut y)]);
        assert_eq!(y, [i64::MIN, 4]);
        run(&MUL_SCALAR_I64, &[value(2u64), read(&x), value(2i64), written(&mut y)]);
        assert_eq!(y, [-2, 6]);
    }
}
