//! Compiles CUDA C++ with NVRTC, when a kernel is first launched or a test checks it.
//!
//! NVRTC is optional. It is looked up here, by the names of both major versions in use, because
//! cudarc knows only one at a time. A library newer than `libcuda` is passed over: it makes PTX
//! that CUDA does not load. `WARPLINE_NVRTC` names a file to try first, whose version is not
//! compared with CUDA's, or a folder that has such libraries.

use super::folders;
use super::headers;
use super::requirements::capability;
use crate::api::driver_version;
use crate::context::Context;
use crate::loader;
use crate::versions::cuda_version;
use libloading::Library;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use warpline_driver::DriverFailure;
use warpline_driver::environment::{self, WARPLINE_NVRTC, WARPLINE_NVRTC_ARCH};

type Program = *mut c_void;

/// NVRTC's functions (nvrtc.h). Each returns 0 or an error's number.
struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    ptx_size: GetSize,
    ptx: GetText,
    log_size: GetSize,
    log: GetText,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    archs_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    /// The version in CUDA's format: 13010 is 13.1.
    version: c_int,
    /// The folders of the headers that sources may include.
    headers: Vec<PathBuf>,
    _library: Library,
}

type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The names of the library. The one without a version comes last: a toolkit's stub has it.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Returns the paths to try, in order.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let in_homes = environment::toolkits().flat_map(|home| NAMES.map(|name| home.join("lib64").join(name)));
    NAMES.map(PathBuf::from).into_iter().chain(in_homes)
}

/// Returns the library, or what was tried and what is wrong with each.
fn nvrtc() -> Result<&'static Nvrtc, &'static str> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    let found = NVRTC.get_or_init(|| search(WARPLINE_NVRTC.path(), candidates(), driver_version()));
    found.as_ref().map_err(String::as_str)
}

fn search(
    named: Option<PathBuf>,
    candidates: impl IntoIterator<Item = PathBuf>,
    driver_version: c_int,
) -> Result<Nvrtc, String> {
    let mut tried = Vec::new();
    let (named, newest) = match named {
        Some(folder) if folder.is_dir() => {
            let found = folders::libraries_in(&folder).unwrap_or_else(|why| {
                tried.push(why);
                Vec::new()
            });
            (found, driver_version)
        }
        named => (named.into_iter().collect(), 0),
    };
    let named = named.into_iter().map(|path| (path, newest));
    for (path, newest) in named.chain(candidates.into_iter().map(|path| (path, driver_version))) {
        match Nvrtc::load(&path) {
            Ok(nvrtc) if newest == 0 || nvrtc.version <= newest => return Ok(nvrtc),
            Ok(nvrtc) => tried.push(format!(
                "{} belongs to CUDA {}, and the driver is for CUDA {}",
                path.display(),
                cuda_version(nvrtc.version),
                cuda_version(newest)
            )),
            Err(error) => tried.push(error),
        }
    }
    Err(tried.join("; "))
}

/// Returns the version that NVRTC reports. A toolkit's stub answers with an error, or not at all.
fn checked_version(code: c_int, major: c_int, minor: c_int, path: &Path) -> Result<c_int, String> {
    if code == 0 && major > 0 {
        return Ok(1000 * major + 10 * minor);
    }
    Err(format!(
        "{} does not report its version (nvrtcVersion returned {code}), like a CUDA toolkit's stub",
        path.display()
    ))
}

impl Nvrtc {
    fn load(path: &Path) -> Result<Self, String> {
        let library = loader::open(path)?;
        // SAFETY: `of` needs NVRTC: the file is named so.
        unsafe { Nvrtc::of(library, path) }
    }

    /// # Safety
    /// `library` is NVRTC.
    unsafe fn of(library: Library, path: &Path) -> Result<Self, String> {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the caller vouches that the functions have nvrtc.h's types.
                *unsafe { library.get($name) }.map_err(|error| loader::why(&error))?
            };
        }
        let get_version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = function!(b"nvrtcVersion\0");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: nvrtcVersion writes two ints.
        let code = unsafe { get_version(&raw mut major, &raw mut minor) };
        Ok(Nvrtc {
            version: checked_version(code, major, minor, path)?,
            headers: headers::folders(get_version as *const c_void),
            create: function!(b"nvrtcCreateProgram\0"),
            compile: function!(b"nvrtcCompileProgram\0"),
            ptx_size: function!(b"nvrtcGetPTXSize\0"),
            ptx: function!(b"nvrtcGetPTX\0"),
            log_size: function!(b"nvrtcGetProgramLogSize\0"),
            log: function!(b"nvrtcGetProgramLog\0"),
            destroy: function!(b"nvrtcDestroyProgram\0"),
            error_string: function!(b"nvrtcGetErrorString\0"),
            archs_count: function!(b"nvrtcGetNumSupportedArchs\0"),
            archs: function!(b"nvrtcGetSupportedArchs\0"),
            _library: library,
        })
    }

    /// Returns the virtual architectures that NVRTC compiles for; none if it does not report them.
    fn archs(&self) -> Vec<c_int> {
        let mut count = 0;
        // SAFETY: nvrtcGetNumSupportedArchs writes an int.
        if unsafe { (self.archs_count)(&raw mut count) } != 0 {
            return Vec::new();
        }
        let mut archs = vec![0; count.max(0) as usize];
        // SAFETY: nvrtcGetSupportedArchs writes `count` ints.
        if unsafe { (self.archs)(archs.as_mut_ptr()) } != 0 {
            return Vec::new();
        }
        archs
    }

    fn text(&self, program: Program, size: GetSize, text: GetText) -> String {
        let mut len = 0;
        // SAFETY: the call takes a live program and writes the size of the text with its NUL.
        if unsafe { size(program, &raw mut len) } != 0 || len == 0 {
            return String::new();
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the call takes a live program and writes that many bytes.
        if unsafe { text(program, bytes.as_mut_ptr().cast::<c_char>()) } != 0 {
            return String::new();
        }
        bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(len));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn error(&self, code: c_int) -> String {
        // SAFETY: nvrtcGetErrorString returns a static string for every number.
        let text = unsafe { (self.error_string)(code) };
        // SAFETY: it is a static string with its NUL.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Compiles `source`, the text of kernel `name`, to PTX for this virtual architecture.
    ///
    /// Keeps the PTX where `WARPLINE_KEEP_PTX` says. A source that does not compile is compiled
    /// once with the same options: a program may launch it again and again. So a header that is
    /// corrected meanwhile is read in the next process, or in another folder.
    fn compile(&self, arch: c_int, lines: Lines, name: &str, source: &str) -> Result<String, String> {
        static MESSAGES: Messages = Mutex::new(BTreeMap::new());
        let mut options = vec![format!("--gpu-architecture=compute_{arch}")];
        if lines == Lines::Named {
            options.push("--generate-line-info".to_owned());
        }
        let headers = [folders::of_headers()?, self.headers.clone()].concat();
        options.extend(headers.iter().map(|folder| format!("--include-path={}", folder.display())));
        let attempt = [name, source, &options.join(" ")].map(str::to_owned);
        let ptx = told_once(&MESSAGES, attempt, || self.run(&options, &headers, lines, name, source))?;
        folders::keep(name, &ptx).map(|()| ptx)
    }

    fn run(
        &self,
        options: &[String],
        headers: &[PathBuf],
        lines: Lines,
        name: &str,
        source: &str,
    ) -> Result<String, Refused> {
        let options: Vec<_> =
            options.iter().map(|option| CString::new(&**option).expect("text without NUL")).collect();
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let text = CString::new(source).map_err(|_| Refused {
            is_about_the_source: true,
            message: "its CUDA C++ contains a NUL byte".to_owned(),
        })?;
        let file = CString::new(format!("{name}.cu")).expect("an identifier");
        let mut program = std::ptr::null_mut();
        // SAFETY: nvrtcCreateProgram reads two strings and writes a program.
        let created = unsafe {
            (self.create)(
                &raw mut program,
                text.as_ptr(),
                file.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if created != 0 {
            let message = format!("NVRTC returned {}", self.error(created));
            return Err(Refused { is_about_the_source: false, message });
        }
        // SAFETY: nvrtcCompileProgram takes a live program and as many strings as the number says.
        let compiled = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let result = if compiled == 0 {
            let ptx = self.text(program, self.ptx_size, self.ptx);
            Ok(if lines == Lines::Named { without_folder(&ptx, &format!("{name}.cu")) } else { ptx })
        } else {
            let log = without_deprecation(&self.text(program, self.log_size, self.log));
            let remedy = headers::remedy(&log, headers);
            let remedy = remedy.map_or_else(String::new, |remedy| format!("\n{remedy}"));
            Err(Refused {
                is_about_the_source: compiled == ERROR_COMPILATION,
                message: format!("NVRTC returned {}:\n{log}{remedy}", self.error(compiled)),
            })
        };
        // SAFETY: nvrtcDestroyProgram takes a live program, which is not used again.
        unsafe { (self.destroy)(&raw mut program) };
        result
    }
}

/// `NVRTC_ERROR_COMPILATION`: the source does not compile. Other errors may be over the next time.
const ERROR_COMPILATION: c_int = 6;

/// The reason why there is no PTX.
struct Refused {
    is_about_the_source: bool,
    message: String,
}

/// The messages about sources that do not compile, by the name, the source and the options of the
/// attempt.
type Messages = Mutex<BTreeMap<[String; 3], String>>;

/// Returns what `compile` returns, or the message about an earlier attempt that was the same.
fn told_once(
    messages: &Messages,
    attempt: [String; 3],
    compile: impl FnOnce() -> Result<String, Refused>,
) -> Result<String, String> {
    if let Some(message) = messages.lock().get(&attempt) {
        return Err(message.clone());
    }
    compile().map_err(|Refused { is_about_the_source, message }| {
        if is_about_the_source {
            messages.lock().insert(attempt, message.clone());
        }
        message
    })
}

/// Returns whether NVRTC was found.
pub(crate) fn is_present() -> bool {
    nvrtc().is_ok()
}

/// Compiles `source`, the text of kernel `name`, to PTX for `context`'s device.
///
/// # Errors
/// Returns why there is no PTX: NVRTC is missing, or its message about the source.
pub(crate) fn compile(context: &Context, name: &str, source: &str) -> Result<String, DriverFailure> {
    let nvrtc = installed()?;
    let (major, minor) = capability(context)?;
    let ours = (major * 10 + minor) as c_int;
    let archs = nvrtc.archs();
    if let Some(&oldest) = archs.iter().min().filter(|oldest| **oldest > ours) {
        return Err(format!(
            "NVRTC {} compiles for compute capability {}.{} and newer, and cuda:{} ({}) has {major}.{minor}; set \
             WARPLINE_NVRTC to an older one, or give the kernel ptx",
            cuda_version(nvrtc.version),
            oldest / 10,
            oldest % 10,
            context.ordinal,
            context.name
        )
        .into());
    }
    let known = archs.into_iter().filter(|&arch| arch <= ours).max();
    Ok(nvrtc.compile(known.unwrap_or(ours), Lines::Omitted, name, source)?)
}

/// Compiles `source`, the text of kernel `name`, to PTX for the newest devices that NVRTC knows.
///
/// Needs no device.
///
/// # Errors
/// `Unsupported` if NVRTC is missing, `InvalidArgument` with its message about the source.
pub fn compile_for_newest(name: &str, source: &str) -> warpline_driver::Result<String> {
    use warpline_driver::{Error, ErrorKind};
    let error = |kind| move |why: String| Error::new(kind, format!("{name}: {why}"));
    let nvrtc = installed().map_err(error(ErrorKind::Unsupported))?;
    let arch = nvrtc.archs().into_iter().max().unwrap_or(KNOWN_TO_ALL);
    nvrtc.compile(arch, Lines::Omitted, name, source).map_err(error(ErrorKind::InvalidArgument))
}

/// Compiles `source`, the text of kernel `name`, to PTX that CPU devices run, with the lines of the
/// source for their reports. The text sees the architecture that `WARPLINE_NVRTC_ARCH` names, or
/// else the oldest one of NVRTC from 7.0 on, since CPU devices have few of the instructions that
/// came later.
///
/// # Errors
/// The errors are those of [`compile_for_newest`], and `InvalidArgument` for an architecture that
/// NVRTC does not know.
pub fn compile_for_cpu(name: &str, source: &str) -> warpline_driver::Result<String> {
    use warpline_driver::{Error, ErrorKind};
    let nvrtc = installed().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    let compiled = arch_for_cpu(nvrtc.archs(), WARPLINE_NVRTC_ARCH.text().as_deref())
        .and_then(|arch| nvrtc.compile(arch, Lines::Named, name, source));
    compiled.map_err(|why| Error::new(ErrorKind::InvalidArgument, why))
}

fn arch_for_cpu(mut archs: Vec<c_int>, named: Option<&str>) -> Result<c_int, String> {
    archs.retain(|arch| *arch >= FIRST_FOR_CPU);
    archs.sort_unstable();
    let Some(named) = named else { return Ok(archs.first().copied().unwrap_or(KNOWN_TO_ALL)) };
    let known = named.parse().ok().filter(|arch| archs.is_empty() || archs.contains(arch));
    known.ok_or_else(|| {
        let archs: Vec<_> = archs.iter().map(c_int::to_string).collect();
        format!("WARPLINE_NVRTC_ARCH is \"{named}\", and NVRTC knows {}; name one of these", archs.join(", "))
    })
}

/// Removes the warning that the architecture is deprecated from NVRTC's messages: it is not about
/// the source.
fn without_deprecation(log: &str) -> String {
    let is_it = |line: &str| line.starts_with("nvrtc: warning") && line.contains("deprecated");
    let lines: Vec<_> = log.lines().filter(|line| !is_it(line)).collect();
    lines.join("\n").trim().to_owned()
}

/// Removes the working directory, which NVRTC puts before the name of the text, from the `.file`
/// directives.
fn without_folder(ptx: &str, file: &str) -> String {
    let end = format!("/{file}\"");
    let lines = ptx.split_inclusive('\n').map(|line| match (line.split_once('"'), line.split_once(&end)) {
        (Some((directive, _)), Some((_, rest))) if directive.trim_start().starts_with(".file") => {
            format!("{directive}\"{file}\"{rest}")
        }
        _ => line.to_owned(),
    });
    lines.collect()
}

/// A virtual architecture that every version of NVRTC knows, if it does not report its own.
const KNOWN_TO_ALL: c_int = 75;

/// The first architecture whose lanes make progress on their own, as those of CPU devices do.
const FIRST_FOR_CPU: c_int = 70;

/// The lines of the source in PTX.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    Named,
    Omitted,
}

fn installed() -> Result<&'static Nvrtc, String> {
    nvrtc().map_err(|tried| {
        format!(
            "its device code is CUDA C++, and no NVRTC that could compile it was found: {tried}; \
             install one (pip install nvidia-cuda-nvrtc-cu12, or a CUDA toolkit), set WARPLINE_NVRTC to its path, \
             or give the kernel ptx or cpu"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_its_bare_name_in_line_numbers() {
        let ptx = "ret;\n\t.file\t1 \"/home/me/scale.cu\"\n\t.file\t2 \"/usr/include/math.h\", 1, 2\n";
        let bare = "ret;\n\t.file\t1 \"scale.cu\"\n\t.file\t2 \"/usr/include/math.h\", 1, 2\n";
        assert_eq!(without_folder(ptx, "scale.cu"), bare);
    }

    #[test]
    fn an_attempt_that_fails_is_made_once_and_one_that_succeeds_each_time() {
        let messages = Messages::default();
        let attempt = |name: &str, options: &str| [name, "text", options].map(str::to_owned);
        let mut made = 0;
        let mut compile = |attempt, result: Result<&str, &str>| {
            let ran = || {
                made += 1;
                let refused = |message: &str| Refused {
                    is_about_the_source: message.starts_with("line"),
                    message: message.to_owned(),
                };
                result.map(str::to_owned).map_err(refused)
            };
            told_once(&messages, attempt, ran)
        };
        for _ in 0..3 {
            assert_eq!(compile(attempt("broken", ""), Err("line 1")), Err("line 1".into()));
            assert_eq!(compile(attempt("sound", ""), Ok("ptx")), Ok("ptx".into()));
            assert_eq!(compile(attempt("large", ""), Err("no memory")), Err("no memory".into()));
        }
        // With a folder of headers added.
        assert_eq!(compile(attempt("broken", "--include-path=/new"), Ok("ptx")), Ok("ptx".into()));
        assert_eq!(made, 1 + 3 + 3 + 1);
    }

    #[test]
    fn messages_are_about_the_source_alone() {
        let warning = "nvrtc: warning : Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a \
                       future release";
        let message = "f.cu(1): error: identifier \"nn\" is undefined\n\n1 error detected.";
        assert_eq!(without_deprecation(&format!("{warning}\n\n{message}\n")), message);
        assert_eq!(without_deprecation(&format!("{message}\n")), message);
    }

    #[test]
    fn cpu_devices_get_the_oldest_architecture_or_the_one_that_is_named() {
        let archs = || vec![90, 52, 75, 80, 70];
        assert_eq!(arch_for_cpu(archs(), None), Ok(70));
        assert_eq!(arch_for_cpu(archs(), Some("80")), Ok(80));
        assert_eq!(arch_for_cpu(Vec::new(), None), Ok(KNOWN_TO_ALL));
        assert_eq!(arch_for_cpu(Vec::new(), Some("86")), Ok(86));
        for wrong in ["52", "81", "sm_80"] {
            let expected = format!(
                "WARPLINE_NVRTC_ARCH is \"{wrong}\", and NVRTC knows 70, 75, 80, 90; name one of these"
            );
            assert_eq!(arch_for_cpu(archs(), Some(wrong)), Err(expected));
        }
    }

    #[test]
    fn a_stub_is_passed_over_and_comes_after_the_real_ones() {
        let path = Path::new("/toolkit/lib64/stubs/libnvrtc.so");
        assert_eq!(checked_version(0, 12, 4, path), Ok(12_040));
        for (code, major) in [(0, 0), (11, 0), (11, 12)] {
            let why = checked_version(code, major, 0, path).unwrap_err();
            assert!(why.contains("stubs/libnvrtc.so does not report its version"), "{why}");
        }
        let names: Vec<_> = candidates().take(NAMES.len()).collect();
        assert_eq!(names.last().unwrap(), Path::new("libnvrtc.so"));
    }

    #[test]
    fn of_all_that_was_tried_it_is_said_what_is_wrong_with_it() {
        // The second file exists, but is another library.
        let paths = ["/nowhere/libnvrtc.so.13", "libc.so.6", "/nowhere/libnvrtc.so.12"].map(PathBuf::from);
        let Err(tried) = search(Some("/nowhere/named".into()), paths, 12_040) else {
            panic!("one was found")
        };
        let parts: Vec<_> = tried.split("; ").collect();
        let expected =
            ["/nowhere/named", "/nowhere/libnvrtc.so.13", "nvrtcVersion", "/nowhere/libnvrtc.so.12"];
        assert_eq!(parts.len(), expected.len(), "{tried}");
        assert!(parts.iter().zip(expected).all(|(part, text)| part.contains(text)), "{tried}");
        let folder = std::env::temp_dir();
        let Err(tried) = search(Some(folder.clone()), [], 12_040) else { panic!("one was found") };
        assert!(tried.starts_with(&format!("the folder {}, which", folder.display())), "{tried}");
        assert_eq!([12_040, 13_010, 9_000].map(cuda_version), ["12.4", "13.1", "9.0"]);
    }
}
