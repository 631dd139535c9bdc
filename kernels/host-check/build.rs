//! Compiles `kernels/cuda/*.cu` as C++, and lists the kernels in them.
//!
//! Without a C++ compiler it compiles nothing and sets the cfg `without_cpp`. The tests then
//! run the PTX of the kernels alone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(without_cpp)");
    // On other systems the crate is empty.
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os != "linux") {
        return;
    }
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let (cuda, host) = (here.join("../cuda"), here.join("host"));
    println!("cargo::rerun-if-changed={}", cuda.display());
    println!("cargo::rerun-if-changed={}", host.display());

    let Some(mut build) = compiler() else {
        println!("cargo::rustc-cfg=without_cpp");
        println!("cargo::warning=the tests of host-check run PTX alone: the sources need a C++ compiler");
        // This file never exists, so the next build looks for a compiler again.
        println!("cargo::rerun-if-changed={}", out.join("compiler").display());
        fs::write(out.join("kernels.rs"), table(&[])).expect("OUT_DIR can be written");
        return;
    };
    build.std("c++17").opt_level(2).warnings(true).include(&host).include(&cuda);
    // Products and sums are not contracted, so the arithmetic is that of the sources on every
    // processor. Behaviour that is undefined on the device too ends the test.
    build.flag("-ffp-contract=off").flag("-Wno-unknown-pragmas").flag_if_supported("-Wno-clobbered");
    build
        .flag("-fsanitize=alignment,bounds,integer-divide-by-zero,shift")
        .flag("-fsanitize-undefined-trap-on-error");
    build.file(host.join("launch.cpp"));

    let mut names = Vec::new();
    for source in sources(&cuda) {
        let text = fs::read_to_string(&source).expect("a source that was just listed");
        let kernels = kernels_in(&text);
        assert!(!kernels.is_empty(), "no kernels in {}", source.display());
        let mut unit =
            format!("#include \"device.h\"\n#include \"launch.h\"\n#include \"{}\"\n", source.display());
        for kernel in &kernels {
            writeln!(unit, "HOST_KERNEL({kernel})").expect("a string takes it");
        }
        let file = out.join(source.with_extension("cpp").file_name().expect("it has one"));
        fs::write(&file, unit).expect("OUT_DIR can be written");
        build.file(file);
        names.extend(kernels);
    }
    build.compile("kernels_on_the_host");
    fs::write(out.join("kernels.rs"), table(&names)).expect("OUT_DIR can be written");
}

/// Returns the first C++ compiler that runs: the one that the environment names (by default `c++`),
/// `g++` or `clang++`.
fn compiler() -> Option<cc::Build> {
    let runs = |path: &Path| {
        let asked = Command::new(path).arg("--version").output();
        asked.is_ok_and(|answer| answer.status.success())
    };
    let mut build = cc::Build::new();
    build.cpp(true);
    if build.try_get_compiler().is_ok_and(|named| runs(named.path())) {
        return Some(build);
    }
    let usual = ["g++", "clang++"].into_iter().find(|name| runs(Path::new(name)))?;
    build.compiler(usual);
    Some(build)
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder of the device code");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut sources: Vec<_> = paths.filter(|path| path.extension().is_some_and(|ext| ext == "cu")).collect();
    sources.sort();
    sources
}

/// Returns the names of kernels: `KERNEL name(` or `KERNEL_OF(…) name(` at the start of a line.
fn kernels_in(text: &str) -> Vec<String> {
    let heads = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("KERNEL")?;
        let rest =
            rest.strip_prefix("_OF").map_or(rest, |rest| rest.split_once(") ").map_or("", |(_, rest)| rest));
        Some(rest.trim().split_once('(')?.0.to_owned())
    });
    heads.collect()
}

/// Returns the text that `src/lib.rs` includes: the functions and a table of them.
fn table(names: &[String]) -> String {
    let mut text = String::from("unsafe extern \"C\" {\n");
    for name in names {
        writeln!(text, "    fn host_{name}(launch: *const Launch, args: *const *const c_void);")
            .expect("fits");
    }
    text.push_str("}\nstatic KERNELS: &[(&str, HostKernel)] = &[\n");
    for name in names {
        writeln!(text, "    (\"{name}\", host_{name}),").expect("fits");
    }
    text.push_str("];\n");
    text
}
