//! The trait of modules, and what it says about their tensors.

use super::moving::{self, Target};
use crate::{Tensor, TensorOperand, TensorOptions};
use std::borrow::Borrow;
use warpline_runtime::{Pending, Refusal};

/// A part of a neural network: a function of a tensor, with parameters.
///
/// A type implements [`forward`](Self::forward) and [`visit`](Self::visit), and derives `Clone`. A
/// clone shares the memory of the tensors, as that of a tensor does. `Box<dyn Module>` is a module
/// too.
///
/// *Parameters* are the tensors that training changes. *Buffers* are the others, such as running
/// means. Both move with the module, and both are part of its state.
///
/// # Examples
/// A cell of a recurrent network, whose state starts as zeros beside the input:
/// ```
/// use warpline::nn::{Linear, Visitor};
/// use warpline::prelude::*;
///
/// #[derive(Clone)]
/// struct Cell {
///     input: Linear,
///     hidden: Linear,
/// }
///
/// impl Cell {
///     fn step(&self, x: &Tensor, h: &Tensor) -> Pending<Tensor> {
///         x.apply(&self.input).add(h.apply(&self.hidden)).relu()
///     }
/// }
///
/// impl Module for Cell {
///     fn forward(&self, x: &Tensor) -> Pending<Tensor> {
///         let (rows, units) = (x.shape()[0], self.hidden.weight.shape()[0]);
///         match x.new_zeros([rows, units]).queued() {
///             Ok(h) => self.step(x, &h),
///             Err(error) => Pending::refused(error),
///         }
///     }
///
///     fn visit(&mut self, visitor: &mut Visitor<'_>) {
///         visitor.module("input", &mut self.input);
///         visitor.module("hidden", &mut self.hidden);
///     }
/// }
///
/// # fn main() -> warpline::Result<()> {
/// let device = Device::best()?;
/// let cell = Cell { input: Linear::new(3, 4, &device)?, hidden: Linear::new(4, 4, &device)? };
/// let names: Vec<_> = cell.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["input.weight", "input.bias", "hidden.weight", "hidden.bias"]);
/// let h = Tensor::ones([2, 3], &device).apply(&cell).queued()?;
/// assert_eq!(h.shape(), [2, 4]);
/// # Ok(())
/// # }
/// ```
pub trait Module: ClonedModule + Send + Sync + 'static {
    /// Computes the output for `x`. [`Apply::apply`] calls it on `Pending`s too.
    ///
    /// # Errors
    /// In the `Pending`: those of the ops that it calls.
    fn forward(&self, x: &Tensor) -> Pending<Tensor>;

    /// Shows every parameter, buffer and module inside this one to `visitor`, in a fixed order.
    ///
    /// A tensor that is left out stays where it is when the module moves, and is not part of its
    /// state. Two tensors of one module must not have one name.
    fn visit(&mut self, visitor: &mut Visitor<'_>);

    /// Returns the parameters with their names: those of a module inside are `module.name`.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        tensors_of(&mut *self.clone_boxed(), |role| role == Role::Parameter)
    }

    /// Returns the buffers with their names.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        tensors_of(&mut *self.clone_boxed(), |role| role == Role::Buffer)
    }

    /// Returns all parameters and buffers with their names, in the order of [`visit`](Self::visit).
    fn state_dict(&self) -> Vec<(String, Tensor)> {
        tensors_of(&mut *self.clone_boxed(), |_| true)
    }

    /// Returns the parameters, in the order of [`visit`](Self::visit).
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// Returns the number of elements of all parameters. A tensor of two names counts once.
    fn parameter_count(&self) -> usize {
        let parameters = self.parameters();
        let counted = |i: &usize| !parameters[..*i].iter().any(|earlier| earlier.is_same(&parameters[*i]));
        (0..parameters.len()).filter(counted).map(|i| parameters[i].len()).sum()
    }

    /// Moves all parameters and buffers to another device, converts them, or both, in place.
    ///
    /// `target` is as in [`TensorOps::to`](crate::TensorOps::to). Floating-point tensors are
    /// converted; integers and `bool` keep their type. Tensors that meet the target already stay as
    /// they are. The module holds the new tensors when the call returns. Clones made earlier keep
    /// the old ones. If one tensor has several names, so has its copy.
    ///
    /// The `Pending` resolves when all copies have finished. Each is ordered as in
    /// [`TensorOps::to`](crate::TensorOps::to).
    ///
    /// # Errors
    /// In the `Pending`: the errors of [`TensorOps::to`](crate::TensorOps::to); `DTypeMismatch` if
    /// the type is not a floating-point type. If a copy is refused, the module keeps all its old
    /// tensors.
    #[track_caller]
    fn to(&mut self, target: impl Into<TensorOptions>) -> Pending<()>
    where
        Self: Sized,
    {
        moving::replaced(self, Target::Options(target.into()))
    }

    /// Moves all parameters and buffers to the current CUDA device, in place, like
    /// [`to`](Self::to).
    ///
    /// # Errors
    /// The errors of [`to`](Self::to) and of [`TensorOps::cuda`](crate::TensorOps::cuda).
    #[track_caller]
    fn cuda(&mut self) -> Pending<()>
    where
        Self: Sized,
    {
        moving::replaced(self, Target::Cuda)
    }

    /// Moves all parameters and buffers to `cpu:0`, in place, like [`to`](Self::to).
    ///
    /// # Errors
    /// The errors of [`to`](Self::to).
    #[track_caller]
    fn cpu(&mut self) -> Pending<()>
    where
        Self: Sized,
    {
        moving::replaced(self, Target::Cpu)
    }
}

fn tensors_of(module: &mut dyn Module, wanted: impl Fn(Role) -> bool) -> Vec<(String, Tensor)> {
    let mut tensors = Vec::new();
    module.visit(&mut Visitor::new(&mut |name, role, tensor| {
        if wanted(role) {
            tensors.push((name.to_owned(), tensor.clone()));
        }
    }));
    tensors
}

/// The use of a tensor in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Training changes it.
    Parameter,
    /// It is part of the state, but training does not change it.
    Buffer,
}

/// Passes over the tensors of a module. [`Module::visit`] shows it all of them.
pub struct Visitor<'a> {
    /// The names of the modules that enclose the visited one, each followed by a dot.
    prefix: String,
    see: &'a mut dyn FnMut(&str, Role, &mut Tensor),
}

impl<'a> Visitor<'a> {
    /// Creates a visitor that calls `see` with the full name and the use of each tensor. `see` may
    /// put another tensor in its place.
    pub fn new(see: &'a mut dyn FnMut(&str, Role, &mut Tensor)) -> Self {
        Visitor { prefix: String::new(), see }
    }

    /// Shows a parameter of the visited module.
    pub fn parameter(&mut self, name: &str, tensor: &mut Tensor) {
        self.tensor(name, Role::Parameter, tensor);
    }

    /// Shows a buffer of the visited module.
    pub fn buffer(&mut self, name: &str, tensor: &mut Tensor) {
        self.tensor(name, Role::Buffer, tensor);
    }

    /// Shows a module inside the visited module.
    pub fn module(&mut self, name: &str, module: &mut dyn Module) {
        let outer = self.prefix.len();
        self.prefix.push_str(name);
        self.prefix.push('.');
        module.visit(self);
        self.prefix.truncate(outer);
    }

    fn tensor(&mut self, name: &str, role: Role, tensor: &mut Tensor) {
        let outer = self.prefix.len();
        self.prefix.push_str(name);
        (self.see)(&self.prefix, role, tensor);
        self.prefix.truncate(outer);
    }
}

/// Applies modules in a chain of ops.
///
/// ```
/// use warpline::nn::Linear;
/// use warpline::prelude::*;
///
/// # fn main() -> warpline::Result<()> {
/// let device = Device::best()?;
/// let (one, two) = (Linear::new(8, 4, &device)?, Linear::new(4, 2, &device)?);
/// let y = Tensor::ones([3, 8], &device).apply(&one).relu().apply(&two).queued()?;
/// assert_eq!(y.shape(), [3, 2]);
/// # Ok(())
/// # }
/// ```
pub trait Apply: TensorOperand {
    /// Returns the output of `module` for this tensor: see [`Module::forward`].
    #[track_caller]
    fn apply<M: Module + ?Sized>(self, module: &M) -> Pending<Tensor> {
        match self.held() {
            Ok(x) => module.forward(x.borrow()),
            Err(refusal) => Refusal::pass_on(refusal),
        }
    }
}

impl<T: TensorOperand> Apply for T {}

/// A module that can be cloned without naming its type: every one that implements `Clone`.
#[doc(hidden)]
pub trait ClonedModule {
    fn clone_boxed(&self) -> Box<dyn Module>;
}

impl<M: Module + Clone> ClonedModule for M {
    fn clone_boxed(&self) -> Box<dyn Module> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Module> {
    fn clone(&self) -> Self {
        (**self).clone_boxed()
    }
}

impl Module for Box<dyn Module> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        (**self).forward(x)
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}
