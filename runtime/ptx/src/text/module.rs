//! The contents of a PTX module, as the text has them: names are not resolved, and instructions are
//! not checked.
//!
//! Everything borrows from the text.

/// A PTX text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module<'a> {
    /// The PTX version: `.version major.minor`.
    pub version: (u32, u32),
    /// The first word of `.target`, such as `sm_70`.
    pub target: &'a str,
    /// The number of bits of an address: 32 or 64.
    pub address_size: u32,
    /// The source files that `.file` numbers, as (number, name).
    pub files: Vec<(u32, &'a str)>,
    /// Variables outside of functions.
    pub variables: Vec<Variable<'a>>,
    /// Kernels and functions, also those that are only declared.
    pub functions: Vec<Function<'a>>,
}

/// The state space of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.param`
    Param,
}

/// The visibility of a name to other modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// No directive: visible in this module alone.
    #[default]
    Internal,
    /// `.visible`
    Visible,
    /// `.extern`
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// A variable in memory, or a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable<'a> {
    /// The visibility.
    pub linkage: Linkage,
    /// The state space.
    pub space: Space,
    /// The alignment in bytes, if the text has one.
    pub align: Option<u64>,
    /// The type of an element without its dot, such as `f32` or `b8`.
    pub ty: &'a str,
    /// The number of elements of a vector: 1, 2 or 4.
    pub vector: u32,
    /// The name.
    pub name: &'a str,
    /// The sizes of the dimensions of an array. `None` is a dimension without a size, as of dynamic
    /// shared memory.
    pub dims: Vec<Option<u64>>,
    /// The initial value.
    pub init: Option<Init<'a>>,
    /// The line of the text, from 1.
    pub line: u32,
}

/// An initial value.
#[derive(Clone, Debug, PartialEq)]
pub enum Init<'a> {
    /// A number.
    Number(Number),
    /// The address of a name, plus an offset in bytes. `generic(name)` has `is_generic`.
    Address {
        /// The name of a variable or function.
        name: &'a str,
        /// Bytes after it.
        offset: i64,
        /// True for a generic address.
        is_generic: bool,
    },
    /// `{ …, … }`
    List(Vec<Init<'a>>),
}

/// A number in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer, in two's complement if it is negative. Constant expressions are computed.
    Integer(i128),
    /// The bits of a float of 32 bits, such as `0f3F800000`.
    F32(u32),
    /// The bits of a float of 64 bits, such as `0d3FF0000000000000` or `1.5`.
    F64(u64),
}

/// A kernel or a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function<'a> {
    /// True for `.entry`, false for `.func`.
    pub is_kernel: bool,
    /// The visibility to other modules.
    pub linkage: Linkage,
    /// The name in the text, with which a driver finds a kernel.
    pub name: &'a str,
    /// The values that a function returns. A register here has the space `Param` too.
    pub returns: Vec<Variable<'a>>,
    /// The parameters.
    pub params: Vec<Variable<'a>>,
    /// The directives before the body.
    pub directives: Vec<Directive<'a>>,
    /// The body, unless the function is only declared.
    pub body: Option<Vec<Statement<'a>>>,
    /// The line of the text, from 1.
    pub line: u32,
}

/// A directive of a function, such as `.maxntid 1024, 1, 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive<'a> {
    /// The name without the dot.
    pub name: &'a str,
    /// The numbers behind the name.
    pub numbers: Vec<u64>,
    /// The line of the text, from 1.
    pub line: u32,
}

/// A statement of a function.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement<'a> {
    /// `.reg .f32 %f<59>;`: registers of one type.
    Registers {
        /// The type without its dot.
        ty: &'a str,
        /// 1, 2 or 4.
        vector: u32,
        /// The names. `%f<59>` is the name `%f` with the count 59, which means `%f0` to `%f58`.
        names: Vec<(&'a str, Option<u32>)>,
    },
    /// A variable in memory, also `.param` of a call.
    Variable(Variable<'a>),
    /// `name:`
    Label(&'a str),
    /// `.loc file line column, function_name label, inlined_at file line column`
    Location {
        /// The place in the source.
        at: Location,
        /// The call, if the code was inlined.
        inlined: Option<Inlined<'a>>,
    },
    /// `{`
    Open,
    /// `}`
    Close,
    /// `name: .branchtargets a, b;` or `name: .calltargets f, g;`
    Targets {
        /// The name of the list.
        name: &'a str,
        /// The labels or functions.
        targets: Vec<&'a str>,
    },
    /// `name: .callprototype …`, the parameters of an indirect call.
    Prototype(Function<'a>),
    /// An instruction.
    Instruction(Instruction<'a>),
}

/// A place in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The number of the file.
    pub file: u32,
    /// The line in that file.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// The call of inlined code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inlined<'a> {
    /// The label of the function's name. It is empty if the text has none.
    pub function: &'a str,
    /// Bytes after it.
    pub offset: i64,
    /// The place of the call.
    pub at: Location,
}

/// An instruction: `@%p1 add.rn.f32 %f1, %f2, %f3;`.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction<'a> {
    /// The predicate register that decides which lanes run it, and true if it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// The opcode with all modifiers: `add.rn.f32`.
    pub opcode: &'a str,
    /// The operands.
    pub operands: Vec<Operand<'a>>,
    /// The line of the text, from 1.
    pub line: u32,
}

impl<'a> Instruction<'a> {
    /// Returns the parts of the opcode: `add`, `rn`, `f32`. The two colons of `.shared::cta` are
    /// not a border.
    pub fn parts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.opcode.split('.')
    }
}

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register, label, variable, function or special register, such as `%r1`, `%tid.x` or
    /// `$L__BB0_3`. The component of a vector is part of the name.
    Name(&'a str),
    /// A negated predicate: `!%p1`.
    Not(&'a str),
    /// A number.
    Number(Number),
    /// The address of a variable plus an offset: `name+4`, outside of brackets.
    Offset(&'a str, i64),
    /// Memory at an address: `[%rd1+8]`, `[name]` or `[16]`.
    Memory {
        /// The register or variable, if there is one.
        base: Option<&'a str>,
        /// Bytes after it.
        offset: i64,
    },
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `a|b`: two results.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// `(a, b)`: the arguments or results of a call.
    List(Vec<Operand<'a>>),
    /// `_`: a result that is not needed.
    Nothing,
}
