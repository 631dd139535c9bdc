//! Reads kernels, functions and the prototypes of calls.

use super::lexer::Token;
use super::module::{Directive, Function, Linkage, Variable};
use super::parser::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// Reads a kernel or a function from `.entry` or `.func` on.
    pub(super) fn function(&mut self, linkage: Linkage) -> Parsed<Function<'a>> {
        let line = self.lexer.line();
        let is_kernel = matches!(self.token, Token::Directive("entry"));
        self.advance();
        while matches!(self.token, Token::Directive("attribute")) {
            self.attribute()?;
        }
        let returns = if is_kernel { Vec::new() } else { self.params()? };
        let name = self.name(if is_kernel { "the name of a kernel" } else { "the name of a function" })?;
        let mut directives = Vec::new();
        self.directives(&mut directives)?;
        let params = self.params()?;
        self.directives(&mut directives)?;
        let body = match self.token {
            Token::Symbol('{') => Some(self.body()?),
            Token::Symbol(';') => {
                self.advance();
                None
            }
            _ => return self.error("\"{\", \";\" or a directive of a function"),
        };
        Ok(Function { is_kernel, linkage, name, returns, params, directives, body, line })
    }

    /// Reads `.callprototype (returns) _ (params);`.
    pub(super) fn prototype(&mut self, name: &'a str) -> Parsed<Function<'a>> {
        let line = self.lexer.line();
        self.advance();
        let returns = self.params()?;
        self.name("\"_\"")?;
        let params = self.params()?;
        let mut directives = Vec::new();
        self.directives(&mut directives)?;
        self.expect(';')?;
        let (is_kernel, linkage, body) = (false, Linkage::Internal, None);
        Ok(Function { is_kernel, linkage, name, returns, params, directives, body, line })
    }

    /// Reads parameters in parentheses, if there are any.
    fn params(&mut self) -> Parsed<Vec<Variable<'a>>> {
        let mut params = Vec::new();
        if !self.take('(') || self.take(')') {
            return Ok(params);
        }
        loop {
            let Token::Directive("param" | "reg") = self.token else {
                return self.error("a parameter");
            };
            params.push(self.declaration(Linkage::Internal)?);
            if self.take(')') {
                return Ok(params);
            }
            if !self.take(',') {
                return self.error("\",\" or \")\"");
            }
        }
    }

    /// Reads directives such as `.maxntid 128, 1, 1`.
    fn directives(&mut self, directives: &mut Vec<Directive<'a>>) -> Parsed<()> {
        while let Token::Directive(name) = self.token {
            let line = self.lexer.line();
            match name {
                "pragma" => self.pragma()?,
                "attribute" => self.attribute()?,
                _ => {
                    self.advance();
                    let mut numbers = Vec::new();
                    if let Token::Integer { .. } = self.token {
                        numbers.push(self.constant_size("a number")?);
                        while self.take(',') {
                            numbers.push(self.constant_size("a number")?);
                        }
                    }
                    directives.push(Directive { name, numbers, line });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::module::{Space, Statement};
    use super::*;

    fn function(text: &str) -> Function<'_> {
        let mut parser = Parser::new(text);
        let linkage = parser.linkage();
        let function = parser.function(linkage).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parser.token, Token::End, "{text}");
        function
    }

    fn error(text: &str) -> String {
        Parser::new(text).function(Linkage::Internal).unwrap_err().to_string()
    }

    /// The type, name, alignment and dimensions of a variable.
    type Kind<'a> = (&'a str, &'a str, Option<u64>, Vec<Option<u64>>);

    fn numbers<'a>(function: &Function<'a>) -> Vec<(&'a str, Vec<u64>)> {
        function.directives.iter().map(|directive| (directive.name, directive.numbers.clone())).collect()
    }

    fn kinds<'a>(variables: &[Variable<'a>]) -> Vec<Kind<'a>> {
        variables.iter().map(|it| (it.ty, it.name, it.align, it.dims.clone())).collect()
    }

    #[test]
    fn a_kernel_has_parameters_and_directives() {
        let kernel = function(
            ".visible .entry k(\n\t.param .u64 .ptr .global .align 8 a,\n\t.param .u64 .ptr.const.align 4 b,
            .param .align 16 .b8 c[32], .param .u64 .ptr d, .param .f32 e, .param .texref t
            )\n.maxntid 128, 1, 1\n.minnctapersm 2 .maxnreg 32 .explicitcluster .reqnctapercluster 2, 1, 1
            .maxclusterrank 8 .reqntid 32 .pragma \"x\"; { ret; }",
        );
        assert!(kernel.is_kernel);
        assert_eq!((kernel.linkage, kernel.name, kernel.line), (Linkage::Visible, "k", 1));
        assert_eq!(
            kinds(&kernel.params),
            [
                ("u64", "a", None, vec![]),
                ("u64", "b", None, vec![]),
                ("b8", "c", Some(16), vec![Some(32)]),
                ("u64", "d", None, vec![]),
                ("f32", "e", None, vec![]),
                ("texref", "t", None, vec![]),
            ]
        );
        assert_eq!((kernel.params[1].line, kernel.params[1].space), (3, Space::Param));
        assert_eq!(
            numbers(&kernel),
            [
                ("maxntid", vec![128, 1, 1]),
                ("minnctapersm", vec![2]),
                ("maxnreg", vec![32]),
                ("explicitcluster", vec![]),
                ("reqnctapercluster", vec![2, 1, 1]),
                ("maxclusterrank", vec![8]),
                ("reqntid", vec![32]),
            ]
        );
        assert_eq!(kernel.directives.iter().map(|it| it.line).collect::<Vec<_>>(), [6, 7, 7, 7, 7, 8, 8]);
        assert_eq!(kernel.body.unwrap().len(), 1);
    }

    #[test]
    fn a_function_returns_values_and_may_only_be_declared() {
        let declared =
            function(".extern .func (.param .b32 retval0) vprintf\n(\n.param .b64 p0,\n.param .b64 p1\n)\n;");
        assert!(!declared.is_kernel && declared.body.is_none());
        assert_eq!((declared.linkage, declared.name), (Linkage::Extern, "vprintf"));
        assert_eq!(kinds(&declared.returns), [("b32", "retval0", None, vec![])]);
        assert_eq!(kinds(&declared.params), [("b64", "p0", None, vec![]), ("b64", "p1", None, vec![])]);

        let trap =
            function(".weak .func .attribute(.unified(1, 2)) trap() .noreturn .abi_preserve 4 { trap; }");
        assert_eq!(numbers(&trap), [("noreturn", vec![]), ("abi_preserve", vec![4])]);
        assert_eq!(numbers(&function(".func f .noreturn (.reg .u32 a);")), [("noreturn", vec![])]);
        assert_eq!(function(".func f;").params, []);

        let registers = function(".func (.reg .v4 .f32 %out) f(.reg .pred p, .param .b8 rest[]) {}");
        assert_eq!((registers.returns[0].space, registers.returns[0].vector), (Space::Param, 4));
        assert_eq!(kinds(&registers.params), [("pred", "p", None, vec![]), ("b8", "rest", None, vec![None])]);
        assert_eq!(registers.body, Some(vec![]));
    }

    #[test]
    fn a_prototype_is_a_function_without_a_body() {
        let function = function(
            ".func f() { p0 : .callprototype (.param .align 4 .b8 _[12]) _ (.param .b64 _, .param .b32 _)
            .noreturn; p1: .callprototype ()_ (); p2: .callprototype _; }",
        );
        let prototypes: Vec<_> = function
            .body
            .unwrap()
            .into_iter()
            .map(|statement| match statement {
                Statement::Prototype(prototype) => prototype,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(prototypes.iter().map(|it| it.name).collect::<Vec<_>>(), ["p0", "p1", "p2"]);
        assert_eq!(kinds(&prototypes[0].returns), [("b8", "_", Some(4), vec![Some(12)])]);
        assert_eq!(kinds(&prototypes[0].params), [("b64", "_", None, vec![]), ("b32", "_", None, vec![])]);
        assert_eq!(numbers(&prototypes[0]), [("noreturn", vec![])]);
    }

    #[test]
    fn errors_name_what_is_missing() {
        for (text, found, expected) in [
            (".entry ( )", "\"(\"", "the name of a kernel"),
            (".func (.param .u32 a) ;", "\";\"", "the name of a function"),
            (".entry k(.global .u32 a)", "\".global\"", "a parameter"),
            (".entry k(.param .u32 a .param", "\".param\"", "\",\" or \")\""),
            (".entry k() ret;", "\"ret\"", "\"{\", \";\" or a directive of a function"),
            (".entry k() .maxntid 1, {", "\"{\"", "a number"),
            (".entry k() .pragma x;", "\"x\"", "a string"),
            (".entry k() {", "the end of the text", "\"}\""),
        ] {
            let error = error(text);
            assert!(
                error.ends_with(&format!("found {found} where {expected} was expected")),
                "{text}: {error}"
            );
        }
    }
}
