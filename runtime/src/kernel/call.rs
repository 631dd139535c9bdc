//! A kernel call: a kernel with its operands and arguments, ready to launch.
//!
//! The function that [`kernel!`](crate::kernel!) writes makes the call. It checks the conditions on
//! the operands alone: that they are contiguous and that the `where` holds. The call keeps the
//! error of a failed check, and the launch refuses it, so that calls can be written in one
//! expression. Making a call of up to six operands and six arguments allocates nothing.

use super::{Arg, Args, Kernel, Operand, ParamKind};
use smallvec::SmallVec;
use std::fmt;
use warpline_driver::{Error, ErrorKind};

/// A kernel with its arguments, to be launched with [`Stream::launch`](crate::Stream::launch).
///
/// Made by the function that [`kernel!`](crate::kernel!) writes. It borrows its operands; the
/// launch keeps their memory alive.
#[must_use = "a call does nothing until it is launched on a stream"]
pub struct KernelCall<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) args: Args,
    pub(crate) operands: Operands<'a>,
    pub(crate) failed: Option<Error>,
}

/// The operands of a call, in the order of the kernel's slice parameters.
pub(crate) type Operands<'a> = SmallVec<[Operand<'a>; 6]>;

impl<'a> KernelCall<'a> {
    /// Returns the call of `kernel` with these arguments. If `failed` is an error, the launch
    /// refuses the call with it.
    ///
    /// # Safety
    /// `args` fit the kernel's parameters, and `operands` are its slice parameters in order, with
    /// their access.
    #[inline]
    pub(super) unsafe fn new<const ARGS: usize, const OPERANDS: usize>(
        kernel: &'static Kernel,
        args: [Arg; ARGS],
        operands: [Operand<'a>; OPERANDS],
        failed: Option<Error>,
    ) -> Self {
        let mut call = KernelCall { kernel, args: Args::new(), operands: Operands::new(), failed };
        put(&mut call.args, args);
        put(&mut call.operands, operands);
        call
    }

    /// Returns the kernel.
    #[inline]
    pub const fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Returns one argument for each of the kernel's parameters.
    #[inline]
    pub fn args(&self) -> &[Arg] {
        &self.args
    }

    /// Returns one operand for each of the kernel's slice parameters, in order.
    #[inline]
    pub fn operands(&self) -> &[Operand<'a>] {
        &self.operands
    }

    /// Returns the error that the launch will be refused with, if an operand is strided or a
    /// condition of the `where` does not hold.
    #[inline]
    pub const fn refusal(&self) -> Option<&Error> {
        self.failed.as_ref()
    }
}

/// Returns the error of a strided operand, if there is one.
#[inline]
pub(super) fn strided_operand<const N: usize>(
    kernel: &'static Kernel,
    operands: [Operand<'_>; N],
) -> Option<Error> {
    // Passed by value, so that the fast path keeps them in registers and needs no address of them.
    if operands.iter().all(Operand::is_contiguous) { None } else { refuse_strided(kernel, operands) }
}

#[cold]
#[inline(never)]
fn refuse_strided<const N: usize>(kernel: &Kernel, operands: [Operand<'_>; N]) -> Option<Error> {
    let slices = kernel.params.iter().filter(|param| matches!(param.kind, ParamKind::Slice { .. }));
    let (param, operand) = slices.zip(&operands).find(|(_, operand)| !operand.is_contiguous())?;
    let ParamKind::Slice { element_bytes, .. } = param.kind else { return None };
    let rows = operand.range.runs().count();
    Some(Error::new(
        ErrorKind::Shape,
        format!(
            "{}: operand {} is a strided view of {rows} rows of {} elements, and the kernel takes contiguous memory; \
             copy it first",
            kernel.name,
            param.name,
            operand.range.len_bytes() as usize / element_bytes / rows,
        ),
    ))
}

/// Returns the error of a call that does not satisfy the kernel's `where`.
#[cold]
#[inline(never)]
pub(super) fn does_not_hold(kernel: &Kernel, condition: &str, values: &[(&str, &dyn fmt::Debug)]) -> Error {
    let values: Vec<_> = values.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    Error::new(
        ErrorKind::Shape,
        format!(
            "{}: \"{condition}\" does not hold: {}; pass arguments that satisfy it",
            kernel.name,
            values.join(", "),
        ),
    )
}

/// Puts `items` into the empty `list`. Writing them in place is faster than pushing them one by
/// one.
#[inline]
fn put<T: Copy, const N: usize>(list: &mut SmallVec<[T; 6]>, items: [T; N]) {
    debug_assert!(list.is_empty());
    if N > 6 {
        return list.extend_from_slice(&items);
    }
    // SAFETY: `write` needs room for N items: six fit without an allocation. They are plain values
    // that own nothing.
    unsafe { list.as_mut_ptr().cast::<[T; N]>().write(items) };
    // SAFETY: `set_len` needs N initialised items, which the line above wrote, and room for them.
    unsafe { list.set_len(N) };
}

impl fmt::Debug for KernelCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCall")
            .field("kernel", &self.kernel.name)
            .field("args", &self.args)
            .field("refusal", &self.failed)
            .finish_non_exhaustive()
    }
}
