//! A kernel with its operands.

/// To come.
#[derive(Debug)]
pub struct KernelCall;
/// To come.
#[derive(Debug)]
pub struct Operand;
/// To come.
pub trait IntoOperand {}
