//! The functions and types that an expansion of `kernel!` names. Other code must not call them.

pub use crate::kernel::call::{call, does_not_hold, strided_operand};
use crate::kernel::{AccessMode, Arg, Elements, Operand};
use warpline_driver::Element;

#[inline]
pub fn slice_arg<T: Element>(operand: &Elements<'_, T>) -> Arg {
    Arg::slice(operand.address().0, operand.len())
}

#[inline]
pub fn operand<'a, T: Element>(operand: Elements<'a, T>, access: AccessMode) -> Operand<'a> {
    operand.with_access(access)
}

#[cold]
#[inline(never)]
pub fn wrong_arguments(kernel: &str, len: usize) -> ! {
    panic!(
        "{kernel}: {len} arguments do not fit its parameters; call its twin through the function that kernel! declares"
    )
}

/// The slices of twins whose written operands overlap no other operand.
pub mod disjoint {
    use crate::kernel::Arg;
    use warpline_driver::Element;

    pub const IN_PLACE: bool = false;
    pub type Read<'a, T> = &'a [T];
    pub type ReadWrite<'a, T> = &'a mut [T];
    pub type Write<'a, T> = &'a mut [T];

    /// # Safety
    /// The argument is the address and length of elements that can be read, and that no other code
    /// writes, during `'a`.
    #[inline]
    pub unsafe fn shared<'a, T: Element>(arg: &Arg) -> &'a [T] {
        if arg.len == 0 {
            return &[];
        }
        // SAFETY: from_raw_parts needs initialised, aligned elements that no other code writes
        // during 'a. The caller vouches; any bytes are a `T`.
        unsafe { std::slice::from_raw_parts(arg.bits as *const T, arg.len as usize) }
    }

    /// # Safety
    /// The argument is the address and length of elements that no other code touches during `'a`.
    #[inline]
    pub unsafe fn unique<'a, T: Element>(arg: &Arg) -> &'a mut [T] {
        if arg.len == 0 {
            return &mut [];
        }
        // SAFETY: from_raw_parts_mut needs initialised, aligned elements that no other code touches
        // during 'a. The caller vouches; any bytes are a `T`.
        unsafe { std::slice::from_raw_parts_mut(arg.bits as *mut T, arg.len as usize) }
    }
}

/// The slices of twins whose written operands may be other operands.
pub mod in_place {
    use crate::kernel::Arg;
    use std::cell::Cell;
    use warpline_driver::Element;

    pub const IN_PLACE: bool = true;
    pub type Read<'a, T> = &'a [Cell<T>];
    pub type ReadWrite<'a, T> = &'a [Cell<T>];
    pub type Write<'a, T> = &'a [Cell<T>];

    /// # Safety
    /// The argument is the address and length of elements that can be read during `'a`, and that
    /// only holders of such cells on this thread write.
    #[inline]
    pub unsafe fn shared<'a, T: Element>(arg: &Arg) -> &'a [Cell<T>] {
        if arg.len == 0 {
            return &[];
        }
        // SAFETY: from_raw_parts needs initialised, aligned elements; `Cell<T>` is laid out as `T`,
        // and cells may be written through other cells of this thread. The caller vouches for the
        // rest; any bytes are a `T`.
        unsafe { std::slice::from_raw_parts(arg.bits as *const Cell<T>, arg.len as usize) }
    }

    /// # Safety
    /// The rules of [`shared`]; the elements may be written too.
    #[inline]
    pub unsafe fn unique<'a, T: Element>(arg: &Arg) -> &'a [Cell<T>] {
        // SAFETY: the same rules, kept by the caller.
        unsafe { shared(arg) }
    }
}
