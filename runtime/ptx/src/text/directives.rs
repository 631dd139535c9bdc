//! Reads the directives of a module.

use super::lexer::Token;
use super::module::{Inlined, Linkage, Location, Module, Space};
use super::parser::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// Reads the whole text.
    pub(super) fn module(mut self) -> Parsed<Module<'a>> {
        let mut module = Module { address_size: 32, ..Module::default() };
        if !matches!(self.token, Token::Directive("version")) {
            return self.error_with("\".version\"", "a module starts with its version, such as .version 8.0");
        }
        module.version = self.version()?;
        if !matches!(self.token, Token::Directive("target")) {
            return self.error_with("\".target\"", "the target follows the version");
        }
        module.target = self.target()?;
        loop {
            match self.token {
                Token::End => return Ok(module),
                Token::Symbol(';') => self.advance(),
                Token::Directive(directive) => self.module_directive(directive, &mut module)?,
                _ => return self.error("a directive"),
            }
        }
    }

    fn module_directive(&mut self, directive: &'a str, module: &mut Module<'a>) -> Parsed<()> {
        match directive {
            "version" => {
                self.version()?;
            }
            "target" => {
                self.target()?;
            }
            "address_size" => {
                self.advance();
                module.address_size = match self.token {
                    Token::Integer { value: value @ (32 | 64), .. } => value as u32,
                    _ => return self.error("32 or 64"),
                };
                self.advance();
            }
            "file" => module.files.push(self.file()?),
            "loc" => {
                self.location()?;
            }
            "section" => self.section()?,
            "pragma" => self.pragma()?,
            "alias" => return self.error_with("a variable or a function", "aliases are not supported"),
            _ => {
                let linkage = self.linkage();
                match self.token {
                    Token::Directive("entry" | "func") => module.functions.push(self.function(linkage)?),
                    Token::Directive(word) => match space(word) {
                        Some(_) => self.variables(linkage, |variable| module.variables.push(variable))?,
                        None => return self.error("a variable, a function or another directive of a module"),
                    },
                    _ => return self.error("a variable or a function"),
                }
            }
        }
        Ok(())
    }

    fn version(&mut self) -> Parsed<(u32, u32)> {
        self.advance();
        let words = self.lexer.slice().split_once('.');
        let version = words.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        match (self.token, version) {
            (Token::F64(_), Some(version)) => {
                self.advance();
                Ok(version)
            }
            _ => self.error("a version such as 8.0"),
        }
    }

    /// Reads `.target sm_70, debug` and returns the first word.
    fn target(&mut self) -> Parsed<&'a str> {
        self.advance();
        let target = self.name("a target such as sm_70")?;
        while self.take(',') {
            self.name("an option of the target")?;
        }
        Ok(target)
    }

    /// Reads `.file 1 "name", time, size`, of which the number and the name count.
    fn file(&mut self) -> Parsed<(u32, &'a str)> {
        self.advance();
        let number = self.u32("the number of a file")?;
        let Token::Text(name) = self.token else {
            return self.error("the name of a file in quotes");
        };
        self.advance();
        while self.take(',') {
            let Token::Integer { .. } = self.token else {
                return self.error("the time or size of a file");
            };
            self.advance();
        }
        Ok((number, name))
    }

    /// Reads `.loc file line column`, and the call if the code was inlined.
    pub(super) fn location(&mut self) -> Parsed<(Location, Option<Inlined<'a>>)> {
        self.advance();
        let at = self.place()?;
        let (mut name, mut call) = (("", 0), None);
        while self.take(',') {
            match self.token {
                Token::Name("function_name") => {
                    self.advance();
                    let (Token::Name(function) | Token::Directive(function)) = self.token else {
                        return self.error("the label of a function's name");
                    };
                    self.advance();
                    name = (function, self.offset()?);
                }
                Token::Name("inlined_at") => {
                    self.advance();
                    call = Some(self.place()?);
                }
                _ => return self.error("\"function_name\" or \"inlined_at\""),
            }
        }
        let (function, offset) = name;
        Ok((at, call.map(|at| Inlined { function, offset, at })))
    }

    fn place(&mut self) -> Parsed<Location> {
        let mut number = || self.u32("the number of a file, line or column");
        Ok(Location { file: number()?, line: number()?, column: number()? })
    }

    /// Skips a section of debugging data.
    fn section(&mut self) -> Parsed<()> {
        self.advance();
        match self.token {
            Token::Name(_) | Token::Directive(_) | Token::Text(_) => self.advance(),
            _ => return self.error("the name of a section"),
        }
        self.expect('{')?;
        loop {
            match self.token {
                Token::Symbol('}') => break,
                Token::Symbol('{') | Token::Invalid(_) | Token::End => return self.error("\"}\""),
                _ => self.advance(),
            }
        }
        self.advance();
        Ok(())
    }

    /// Skips `.pragma "a", "b";`.
    pub(super) fn pragma(&mut self) -> Parsed<()> {
        loop {
            self.advance();
            let Token::Text(_) = self.token else {
                return self.error("a string");
            };
            self.advance();
            match self.token {
                Token::Symbol(',') => {}
                Token::Symbol(';') => break,
                _ => return self.error("\",\" or \";\""),
            }
        }
        self.advance();
        Ok(())
    }

    /// Skips `.attribute(…)`, whose parentheses may have others inside.
    pub(super) fn attribute(&mut self) -> Parsed<()> {
        self.advance();
        let mut open = 0u32;
        loop {
            match self.token {
                Token::Symbol('(') => open += 1,
                _ if open == 0 => return self.error("\"(\""),
                Token::Symbol(')') => open -= 1,
                Token::Symbol(',')
                | Token::Directive(_)
                | Token::Name(_)
                | Token::Integer { .. }
                | Token::Text(_) => {}
                _ => return self.error("\")\""),
            }
            self.advance();
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// Reads a linkage if there is one.
    pub(super) fn linkage(&mut self) -> Linkage {
        let linkage = match self.token {
            Token::Directive("visible") => Linkage::Visible,
            Token::Directive("extern") => Linkage::Extern,
            Token::Directive("weak") => Linkage::Weak,
            Token::Directive("common") => Linkage::Common,
            _ => return Linkage::Internal,
        };
        self.advance();
        linkage
    }
}

/// Returns the state space that a directive names.
pub(super) fn space(directive: &str) -> Option<Space> {
    Some(match directive {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    const HEAD: &str = ".version 8.0 .target sm_70 .address_size 64 ";

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_module_has_a_head_files_variables_and_functions() {
        let module = parse(
            "// comment\n.version 8.10\n.target sm_90a, debug, texmode_independent\n.address_size 64
            .file 1 \"a.cu\" .file 2 \"b.cu\", 1700000000, 4096
            .pragma \"x\";
            .visible .global .u32 g = 1;
            .extern .func f;
            .loc 1 2 3
            .weak .entry k() { ret; }
            .section .debug_info { .b8 1,2\n.b64 $L__func_begin0\n.b32 .debug_abbrev+4 label: };
            .section .debug_empty { }\0 anything",
        )
        .unwrap();
        assert_eq!(module.version, (8, 10));
        assert_eq!((module.target, module.address_size), ("sm_90a", 64));
        assert_eq!(module.files, [(1, "a.cu"), (2, "b.cu")]);
        assert_eq!(module.variables.iter().map(|it| it.name).collect::<Vec<_>>(), ["g"]);
        let functions: Vec<_> =
            module.functions.iter().map(|it| (it.linkage, it.name, it.is_kernel)).collect();
        assert_eq!(functions, [(Linkage::Extern, "f", false), (Linkage::Weak, "k", true)]);
    }

    #[test]
    fn the_address_size_is_32_unless_the_text_has_it() {
        assert_eq!(parse(".version 1.4 .target sm_10").unwrap().address_size, 32);
        assert_eq!(parse(HEAD).unwrap().address_size, 64);
        let twice = format!("{HEAD}.version 8.0 .target sm_80");
        assert_eq!(parse(&twice).unwrap().target, "sm_70");
    }

    #[test]
    fn errors_name_the_line_and_the_column() {
        for (text, expected) in [
            (
                "",
                "line 1, column 1: found the end of the text where \".version\" was expected; \
                 a module starts with its version, such as .version 8.0",
            ),
            (
                ".version 8.0\n.entry",
                "line 2, column 1: found \".entry\" where \".target\" was expected; \
                 the target follows the version",
            ),
            (".version 8", "line 1, column 10: found \"8\" where a version such as 8.0 was expected"),
            (".version 8.x", "line 1, column 10: found \"8.x\" where a number was expected"),
            (
                ".version 8.0 .target 7",
                "line 1, column 22: found \"7\" where a target such as sm_70 was expected",
            ),
            ("/* \n é", "line 1, column 1: found \"/*\" where \"*/\" was expected"),
        ] {
            assert_eq!(error(text), expected);
        }
        for (text, expected) in [
            (".address_size 16", "found \"16\" where 32 or 64 was expected"),
            (".file x", "found \"x\" where the number of a file was expected"),
            (".file 1 x", "found \"x\" where the name of a file in quotes was expected"),
            (".pragma \"é\" x", "found \"x\" where \",\" or \";\" was expected"),
            (".section {", "found \"{\" where the name of a section was expected"),
            (".section .x { {", "found \"{\" where \"}\" was expected"),
            ("add.s32", "found \"add.s32\" where a directive was expected"),
            (
                ".extern .x",
                "found \".x\" where a variable, a function or another directive of a module was expected",
            ),
            (".extern x", "found \"x\" where a variable or a function was expected"),
            (
                ".alias a, b;",
                "found \".alias\" where a variable or a function was expected; aliases are not supported",
            ),
            ("\u{7}", "found \"\\u{7}\" where a token of PTX was expected"),
            (".loc 1 2 3, function_name 4", "found \"4\" where the label of a function's name was expected"),
        ] {
            let error = error(&format!("{HEAD}{text}"));
            assert!(error.ends_with(expected), "{error}");
        }
    }
}
