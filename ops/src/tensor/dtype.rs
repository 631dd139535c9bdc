//! The element types of tensors, and their promotion.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use warpline_kernels::TypeCode;
use warpline_runtime::MadeInScope;

/// The type of a tensor's elements.
///
/// # Promotion
/// An op on two types computes in the type that [`promote`](Self::promote) returns, as in PyTorch.
/// Among operands of one kind (truth values, integers, floating-point numbers), a tensor with
/// dimensions decides before a tensor without any, and that before a number: an `f32` matrix plus
/// an `f64` scalar tensor is `f32`.
///
/// Results of a 16-bit type are computed in `f32` and rounded once. Of the operands, tensors are
/// rounded to the type of the result, and numbers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
    /// 16-bit floating point of IEEE 754.
    F16,
    /// 16-bit floating point with the exponents of `f32`.
    BF16,
    /// 64-bit integer: labels and indices.
    I64,
    /// 32-bit integer.
    I32,
    /// 16-bit integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// Truth value, one byte.
    Bool,
}

/// The kind of a type. A kind promotes to every later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bool,
    Integer,
    Float,
}

impl DType {
    /// All types.
    pub const ALL: [DType; 10] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U8,
        DType::Bool,
    ];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        self.code().size()
    }

    /// Returns true for the floating-point types.
    pub const fn is_floating_point(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Returns the smallest type that operands of both types promote to.
    ///
    /// A floating-point type absorbs every integer type, and an integer type absorbs `bool`. Of two
    /// types of one kind, it is the larger one; but `f16` with `bf16` becomes `f32`, and `u8` with
    /// `i8` becomes `i16`. This is the table of
    /// [`torch.promote_types`](https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).
    pub fn promote(self, other: DType) -> DType {
        use DType::{BF16, F16, F32, I8, I16, U8};
        if self == other {
            return self;
        }
        if self.kind() != other.kind() {
            return if self.kind() > other.kind() { self } else { other };
        }
        match (self, other) {
            (F16, BF16) | (BF16, F16) => F32,
            (U8, I8) | (I8, U8) => I16,
            _ if self.size() >= other.size() => self,
            _ => other,
        }
    }

    pub(super) const fn kind(self) -> Kind {
        match self {
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Kind::Float,
            DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U8 => Kind::Integer,
            DType::Bool => Kind::Bool,
        }
    }

    pub(super) const fn code(self) -> TypeCode {
        match self {
            DType::F32 => TypeCode::F32,
            DType::F64 => TypeCode::F64,
            DType::F16 => TypeCode::F16,
            DType::BF16 => TypeCode::Bf16,
            DType::I64 => TypeCode::I64,
            DType::I32 => TypeCode::I32,
            DType::I16 => TypeCode::I16,
            DType::I8 => TypeCode::I8,
            DType::U8 => TypeCode::U8,
            DType::Bool => TypeCode::Bool,
        }
    }

    /// Returns the type of floating-point tensors whose maker names no type: that of the innermost
    /// [`enter`](Self::enter) or [`scope`](Self::scope), otherwise `F32`.
    pub fn default_float() -> DType {
        DEFAULT.get()
    }

    /// Calls `f` with this type as the [default](Self::default_float).
    ///
    /// Like the closure of [`Device::enter`](warpline_runtime::Device::enter), `f` cannot be
    /// `|| async { … }`.
    ///
    /// # Panics
    /// If this is not a floating-point type.
    ///
    /// # Examples
    /// ```
    /// use warpline::{DType, Device, Tensor};
    /// # fn main() -> warpline::Result<()> {
    /// let device = Device::best()?;
    /// let x = DType::F64.enter(|| Tensor::zeros([2], &device)).queued()?;
    /// assert_eq!(x.dtype(), DType::F64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter<R: MadeInScope>(self, f: impl FnOnce() -> R) -> R {
        let _installed = Installed::new(self);
        f()
    }

    /// Returns a future that is polled with this type as the [default](Self::default_float). `f` is
    /// called in the first poll.
    ///
    /// # Cancel safety
    /// The cancel safety of the future that `f` returns.
    ///
    /// # Panics
    /// If this is not a floating-point type: in the first poll.
    pub fn scope<F, Fut>(self, f: F) -> DTypeScope<F, Fut>
    where
        F: FnOnce() -> Fut,
        Fut: Future,
    {
        DTypeScope { dtype: self, make: Some(f), future: None }
    }
}

thread_local! {
    static DEFAULT: Cell<DType> = const { Cell::new(DType::F32) };
}

/// Restores the default of before when it is dropped, also by a panic.
struct Installed {
    before: DType,
}

impl Installed {
    fn new(dtype: DType) -> Self {
        assert!(
            dtype.is_floating_point(),
            "{dtype} cannot be the default type, because it is not a floating-point type; use f32, \
             f64, f16 or bf16"
        );
        Installed { before: DEFAULT.replace(dtype) }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        DEFAULT.set(self.before);
    }
}

/// A future that is polled with a default type, from [`DType::scope`].
///
/// Dropping it before it resolves drops the future with that default type too.
#[pin_project::pin_project(PinnedDrop)]
#[must_use = "futures do nothing unless polled"]
pub struct DTypeScope<F, Fut> {
    dtype: DType,
    make: Option<F>,
    #[pin]
    future: Option<Fut>,
}

impl<F, Fut> Future for DTypeScope<F, Fut>
where
    F: FnOnce() -> Fut,
    Fut: Future,
{
    type Output = Fut::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fut::Output> {
        let mut this = self.project();
        let _installed = Installed::new(*this.dtype);
        if let Some(make) = this.make.take() {
            this.future.set(Some(make()));
        }
        this.future.as_pin_mut().expect("the first poll made it").poll(cx)
    }
}

#[pin_project::pinned_drop]
impl<F, Fut> PinnedDrop for DTypeScope<F, Fut> {
    fn drop(self: Pin<&mut Self>) {
        let mut this = self.project();
        // The first poll refuses other types.
        let _installed = this.dtype.is_floating_point().then(|| Installed::new(*this.dtype));
        drop(this.make.take());
        this.future.set(None);
    }
}

impl<F, Fut> fmt::Debug for DTypeScope<F, Fut> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DTypeScope({})", self.dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::Bool => "bool",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn promotion_does_not_depend_on_the_order_and_keeps_the_higher_kind() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
                assert!(a.promote(b).kind() == a.kind().max(b.kind()), "{a} {b}");
            }
        }
    }

    #[test]
    fn a_default_ends_with_its_scope_also_after_a_panic() {
        assert_eq!(DType::default_float(), DType::F32);
        let inner = DType::F64.enter(|| DType::F16.enter(DType::default_float));
        assert_eq!((inner, DType::default_float()), (DType::F16, DType::F32));
        let panicked = std::panic::catch_unwind(|| DType::F64.enter(|| panic!("inside")));
        assert!(panicked.is_err() && DType::default_float() == DType::F32);
        assert!(std::panic::catch_unwind(|| DType::I64.enter(|| ())).is_err());
    }
}
