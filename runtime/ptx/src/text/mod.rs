//! The text of PTX, and its parser.

mod constants;
mod directives;
mod error;
mod functions;
mod lexer;
mod module;
mod operands;
mod parser;
pub(crate) mod speculation;
mod statements;
mod variables;

pub use error::ParseError;
pub use module::*;
pub use parser::parse;
