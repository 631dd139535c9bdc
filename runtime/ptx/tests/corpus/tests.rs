//! Checks that the sources, the PTX, the manifest and the references belong together.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::manifest::cases;
use super::references::{Agreement, Expected, expected};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");

/// The names without extension of the files in `folder` that have it.
fn names(folder: &str, extension: &str) -> BTreeSet<String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    files.filter_map(|file| file.strip_suffix(extension).map(str::to_owned)).collect()
}

fn source(file: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(format!("{file}.cu"))).unwrap()
}

#[test]
fn every_source_has_ptx_and_a_launch() {
    let sources = names(FOLDER, ".cu");
    assert_eq!(sources, names(&format!("{FOLDER}/ptx"), ".ptx"));
    assert_eq!(sources, cases().into_iter().map(|case| case.file).collect());
}

#[test]
fn the_manifest_names_the_lines_marked_in_the_sources() {
    for case in cases() {
        let marked: Vec<u32> = (1..)
            .zip(source(&case.file).lines())
            .filter(|(_, line)| line.ends_with("// fault"))
            .map(|(number, _)| number)
            .collect();
        match case.fault {
            Some(fault) if case.file.contains('.') => assert_eq!(fault.lines, marked, "{}", case.file),
            _ => assert!(marked.is_empty(), "{}", case.file),
        }
    }
}

#[test]
fn each_kernel_has_as_many_parameters_as_the_manifest_gives() {
    for case in cases() {
        let ptx = fs::read_to_string(format!("{FOLDER}/ptx/{}.ptx", case.file)).unwrap();
        let (_, rest) = ptx.split_once(&format!(".entry {}(", case.kernel)).unwrap();
        let declared: Vec<&str> = rest.split_once(')').unwrap().0.split(',').map(str::trim).collect();
        assert_eq!(declared.len(), case.parameters.len(), "{}", case.file);
        for (declared, parameter) in declared.iter().zip(&case.parameters) {
            let size = if parameter.is_array { 8 } else { parameter.values.bytes().len() };
            assert!(
                declared.starts_with(&format!(".param .u{} ", 8 * size))
                    || declared.starts_with(&format!(".param .f{} ", 8 * size)),
                "{}: {declared}",
                case.file
            );
        }
    }
}

#[test]
fn references_give_arrays_like_those_of_the_manifest() {
    for case in cases().iter().filter(|case| case.fault.is_none()) {
        let expected = expected(case);
        assert!(!expected.is_empty());
        for part in expected {
            let Expected::Array { parameter, values, .. } = part else { continue };
            let given = &case.parameters.iter().find(|given| given.name == parameter).unwrap().values;
            assert_eq!(
                (values.type_name(), values.len()),
                (given.type_name(), given.len()),
                "{} of {}",
                parameter,
                case.file
            );
            assert_eq!(&given.like(&given.bytes()), given);
        }
    }
}

#[test]
fn agreement_names_the_first_element_beyond_the_tolerance() {
    let within = Agreement::Within { relative: 0.1, absolute: 0.0 };
    assert_eq!(within.check(&vec![1.0, 2.0].into(), &vec![1.05, 1.9].into()), Ok(()));
    let message = within.check(&vec![1.0, 2.0].into(), &vec![1.0, 3.0].into()).unwrap_err();
    assert!(message.starts_with("element 1 is 3; expected 2"), "{message}");
    assert_eq!(Agreement::AnyOrder.check(&vec![1_u32, 2].into(), &vec![2_u32, 1].into()), Ok(()));
}
