//! The element types of buffers: plain data of a fixed size.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type that device memory can hold: every bit pattern is a value.
///
/// `bool` is not an element, since not every byte is a `bool`; use `u8`.
pub trait Element: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static + sealed::Sealed {
    /// The name used in errors and in kernel signatures.
    const NAME: &'static str;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty = $name:literal),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const NAME: &'static str = $name;
        }
    )*};
}

elements! {
    f32 = "f32", f64 = "f64", half::f16 = "f16", half::bf16 = "bf16",
    u8 = "u8", i8 = "i8", u16 = "u16", i16 = "i16", u32 = "u32", i32 = "i32", u64 = "u64", i64 = "i64",
}
