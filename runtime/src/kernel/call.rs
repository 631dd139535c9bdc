//! A kernel with its operands: what is launched.
//!
//! A call is made by the function that [`kernel!`](crate::kernel!) writes, which checks what concerns the operands alone:
//! that they are contiguous and that the `where` holds. A failed check is kept in the call and refused at the launch, so
//! that calls can be written in one expression. Making a call of up to six operands and six arguments allocates nothing.

use super::{AccessMode, Arg, Args, Kernel, ParamKind};
use crate::driver::DevicePtr;
use crate::element::Element;
use crate::error::{Error, ErrorKind};
use crate::memory::Allocation;
use crate::order::ByteRange;
use smallvec::SmallVec;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Something that a kernel can take where its declaration says `&[T]` or `&mut [T]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed where the kernel takes a slice of `{T}`",
    note = "pass a reference to device memory of that element type, such as `&Buffer<{T}>`"
)]
pub trait IntoOperand<'a, T: Element> {
    /// Which memory it is.
    fn into_operand(self) -> RawOperand<'a, T>;
}

/// Elements of device memory, before it is known what a kernel does with them.
#[derive(Debug)]
pub struct RawOperand<'a, T> {
    allocation: &'a Arc<Allocation>,
    range: ByteRange,
    len: usize,
    _element: PhantomData<fn() -> T>,
}

impl<T> Clone for RawOperand<'_, T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RawOperand<'_, T> {}

impl<'a, T: Element> RawOperand<'a, T> {
    /// The elements in `range`, by bytes from the start of `allocation`: inside it, and each run whole, aligned elements.
    #[inline]
    #[allow(dead_code, reason = "buffers make operands")]
    pub(crate) fn new(allocation: &'a Arc<Allocation>, range: ByteRange) -> Self {
        debug_assert!(range.end() <= allocation.len_bytes as u64);
        debug_assert!(range.runs().all(|(offset, len)| {
            (offset | len).is_multiple_of(size_of::<T>() as u64)
                && (allocation.ptr.0 + offset).is_multiple_of(align_of::<T>() as u64)
        }));
        let len = range.len_bytes() as usize / size_of::<T>();
        RawOperand { allocation, range, len, _element: PhantomData }
    }

    /// Elements.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The argument that a kernel gets: where the first element is, and how many there are.
    #[inline]
    pub(super) fn arg(&self) -> Arg {
        Arg::slice(self.allocation.ptr.offset(self.range.offset()).0, self.len)
    }

    /// The operand of a kernel that accesses it so.
    #[inline]
    pub(super) const fn with_access(self, access: AccessMode) -> Operand<'a> {
        Operand { allocation: self.allocation, range: self.range, len: self.len, access }
    }
}

impl<'a, T: Element> IntoOperand<'a, T> for RawOperand<'a, T> {
    #[inline]
    fn into_operand(self) -> RawOperand<'a, T> {
        self
    }
}

/// Device memory that a call touches, and how.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub(crate) allocation: &'a Arc<Allocation>,
    pub(crate) range: ByteRange,
    pub(crate) len: usize,
    pub(crate) access: AccessMode,
}

impl Operand<'_> {
    /// The address of its first byte.
    #[inline]
    pub fn address(&self) -> DevicePtr {
        self.allocation.ptr.offset(self.range.offset())
    }

    /// Which bytes of its allocation it is.
    #[inline]
    pub const fn range(&self) -> ByteRange {
        self.range
    }

    /// What the kernel does with it.
    #[inline]
    pub const fn access(&self) -> AccessMode {
        self.access
    }

    /// Elements.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is one run of memory, as kernels take it.
    #[inline]
    pub const fn is_contiguous(&self) -> bool {
        self.range.is_contiguous()
    }
}

/// A kernel with its arguments, to be launched on a stream.
///
/// Made by the function that [`kernel!`](crate::kernel!) writes. It borrows its operands; the launch keeps their memory.
#[must_use = "a call does nothing until it is launched on a stream"]
pub struct KernelCall<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) args: Args,
    pub(crate) operands: Operands<'a>,
    pub(crate) failed: Option<Error>,
}

/// A call's operands, in the order of the kernel's slice parameters.
pub(crate) type Operands<'a> = SmallVec<[Operand<'a>; 6]>;

impl<'a> KernelCall<'a> {
    /// The call of `kernel` with these arguments, or what will be refused for the reason in `failed`.
    ///
    /// # Safety
    /// `args` fit the kernel's parameters, and `operands` are its slice parameters in order, with their access.
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

    /// The kernel.
    #[inline]
    pub const fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// One for each of the kernel's parameters.
    #[inline]
    pub fn args(&self) -> &[Arg] {
        &self.args
    }

    /// One for each of the kernel's slice parameters, in order.
    #[inline]
    pub fn operands(&self) -> &[Operand<'a>] {
        &self.operands
    }

    /// Why the call cannot be launched, if its operands or scalars do not fit.
    #[inline]
    pub const fn refusal(&self) -> Option<&Error> {
        self.failed.as_ref()
    }
}

/// Why `kernel` does not take `operands`, if one of them is strided.
#[inline]
pub(super) fn strided_operand<const N: usize>(
    kernel: &'static Kernel,
    operands: [Operand<'_>; N],
) -> Option<Error> {
    // By value, so that the fast path needs no address of them and keeps them in registers.
    if operands.iter().all(Operand::is_contiguous) { None } else { refuse_strided(kernel, operands) }
}

#[cold]
#[inline(never)]
fn refuse_strided<const N: usize>(kernel: &Kernel, operands: [Operand<'_>; N]) -> Option<Error> {
    let slices = kernel.params.iter().filter(|param| matches!(param.kind, ParamKind::Slice { .. }));
    let (param, operand) = slices.zip(&operands).find(|(_, operand)| !operand.is_contiguous())?;
    let rows = operand.range.runs().count();
    Some(Error::new(
        ErrorKind::Shape,
        format!(
            "{}: operand {} is a strided view of {rows} rows of {} elements, and the kernel takes contiguous memory; \
             copy it first",
            kernel.name,
            param.name,
            operand.len / rows,
        ),
    ))
}

/// The refusal of a call for which the kernel's `where` does not hold.
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

/// Puts `items` into the empty `list`. Writing them where they belong beats pushing them one by one.
#[inline]
fn put<T: Copy, const N: usize>(list: &mut SmallVec<[T; 6]>, items: [T; N]) {
    debug_assert!(list.is_empty());
    if N > 6 {
        return list.extend_from_slice(&items);
    }
    // SAFETY: `write` needs room for N items: six fit without an allocation. They are plain values that own nothing.
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
