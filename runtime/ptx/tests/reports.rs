//! The texts of faults outside of memory, and what kernels print.

use warpline_ptx::{Config, Memory, Module, Region};

/// Runs one thread of a body, with the operand `x` of 16 words, and returns the printed text or
/// the fault behind the name of the thread. `%x` is the address of the operand.
fn run(before: &str, body: &str) -> Result<String, String> {
    let text = format!(
        ".version 8.0 .target sm_70 .address_size 64
        {before}
        .visible .entry main(.param .u64 x) {{
            .local .align 8 .b8 args[16];
            .reg .b64 %x, %p, %q; .reg .b32 %r;
            ld.param.u64 %x, [x];
            {body}
            ret;
        }}"
    );
    let module = Module::new(text.clone()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let kernel = module.kernel("main").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut words = [0u32; 16];
    let start = words.as_mut_ptr().expose_provenance() as u64;
    let region = Region { is_writable: true, ..Region::new("x", start, 64, 4) };
    let memory = Memory::Regions(vec![region]);
    // SAFETY: launch needs a region that is valid and that nothing else accesses meanwhile: it is
    // the array above.
    let result = unsafe { kernel.launch(&Config::linear(1, 1), &start.to_le_bytes(), memory) };
    result.map_err(|fault| fault.kind.to_string())
}

#[track_caller]
fn fails(before: &str, body: &str, end: &str) {
    let text = run(before, body).unwrap_err();
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn an_array_of_a_module_is_counted_in_the_elements_of_the_access() {
    let array = ".global .align 4 .b8 a[64]; .const .align 4 .b8 b[64];";
    for (bytes, access, index) in [(4, "ld.global.u32 %r, [a+64];", 16), (8, "ld.global.u64 %p, [a+80];", 10)]
    {
        let end =
            format!("which is element {index} of a, and it has {} elements; mend the index", 64 / bytes);
        fails(array, access, &end);
    }
    let end = "at element 3 of b, which is declared as read only; declare b as written";
    fails(array, "cvta.const.u64 %p, b; st.u32 [%p+12], 0;", end);
}

#[test]
fn an_overrun_of_an_array_of_a_module_lands_in_no_other_one() {
    let arrays: String = (0..8).map(|array| format!(".global .align 4 .b8 a{array}[4000];\n")).collect();
    for (array, byte) in (0..8).flat_map(|array| (4000..4512).step_by(16).map(move |byte| (array, byte))) {
        run(&arrays, &format!("ld.global.u32 %r, [a{array}+{byte}];")).unwrap_err();
    }
}

#[test]
fn an_operand_is_counted_in_its_own_elements() {
    fails(
        "",
        "ld.global.u64 %p, [%x+64];",
        "which is element 16 of x, and it has 16 elements; mend the index",
    );
    fails("", "ld.global.u32 %r, [%x-4];", "1 element before x, which has 16 elements; mend the index");
}

#[test]
fn an_index_that_wraps_is_named_and_a_pointer_to_elsewhere_is_not() {
    let wrapped = "mov.u64 %p, 0xffffffff; shl.b64 %p, %p, 2; add.u64 %p, %p, %x; ld.global.u32 %r, [%p];";
    fails("", wrapped, "which is element 4294967295 of x, and it has 16 elements; mend the index");
    let far =
        "which is far from all memory that the launch declares; mend the pointer, or declare the memory";
    for distance in ["0x1000000000000", "-0x400000000010"] {
        fails("", &format!("add.u64 %p, %x, {distance}; ld.global.u32 %r, [%p];"), far);
    }
}

#[test]
fn the_numbers_of_a_barrier_in_registers_are_named() {
    let warps =
        "it names 48 threads at a barrier, which counts whole warps of 32; name a multiple of 32, from 32 on";
    for barrier in
        ["bar.sync 0, %r", "barrier.arrive 0, %r", "{ .reg .pred %a; barrier.red.and.pred %a, 0, %r, %a; }"]
    {
        fails("", &format!("mov.u32 %r, 48; {barrier};"), warps);
    }
    let id = "it names barrier 16, and a block has barriers 0 to 15; name one of these";
    fails("", "mov.u32 %r, 16; bar.sync %r;", id);
    run("", "mov.u32 %r, 32; bar.sync 15, %r;").unwrap();
}

#[test]
fn an_access_outside_of_shared_memory_names_the_nearest_variable() {
    // Variables of functions have the names that C++ compilers give them.
    let variables = ".shared .align 4 .b8 first[16]; .shared .align 4 .b8 _ZZ4mainE4tile[64];";
    let at = |byte: i64, name: &str, len: u64| {
        format!("4 bytes at byte {byte} of the shared variable {name}, which has {len} bytes; mend the index")
    };
    let body = |offset: &str| {
        format!(
            "st.shared.u32 [first], 0; st.shared.u32 [_ZZ4mainE4tile], 0; mov.u32 %r, {offset}; st.shared.u32 [%r], 1;"
        )
    };
    fails(variables, &body("80"), &at(64, "tile", 64));
    fails(variables, &body("1000"), &at(984, "tile", 64));
    fails(variables, &body("-4"), &at(-4, "first", 16));
    let none = "at offset 64 of shared memory, and the block has 0 bytes; mend the index, or launch with more shared memory";
    fails("", "st.shared.u32 [64], 1;", none);
}

#[test]
fn a_null_pointer_is_named_with_malloc_if_the_kernel_calls_it() {
    let malloc = ".extern .func (.param .b64 p) malloc(.param .b64 bytes);";
    let call = "{ .param .b64 bytes; .param .b64 back; st.param.b64 [bytes], 64;
        call (back), malloc, (bytes); ld.param.b64 %q, [back]; }";
    let null = "mov.u64 %p, 0; st.global.u32 [%p+8000], 1;";
    fails("", null, "it writes 4 bytes at 0x1f40, through a null pointer; pass the address of memory");
    fails(malloc, null, "through a null pointer; pass the address of memory");
    let end = "through a null pointer; pass the address of memory, and do not use what malloc or new return \
               without a test: it is null where kernels have no heap, as on a CPU device, or a full one";
    fails(malloc, &format!("{call} st.u32 [%q], 1;"), end);
}

/// Prints a value of 64 bits by a format.
fn printed(format: &str, value: u64) -> String {
    let bytes: Vec<String> = format.bytes().chain([0]).map(|byte| byte.to_string()).collect();
    let before = format!(
        ".extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);
        .global .align 1 .b8 format[{}] = {{{}}};",
        bytes.len(),
        bytes.join(", ")
    );
    let body = format!(
        "mov.b64 %q, {value}; st.local.b64 [args], %q;
        cvta.global.u64 %p, format; cvta.local.u64 %q, args;
        {{ .param .b64 f; .param .b64 a; .param .b32 r;
          st.param.b64 [f], %p; st.param.b64 [a], %q; call (r), vprintf, (f, a); }}"
    );
    run(&before, &body).unwrap()
}

#[test]
fn lengths_of_printed_integers_are_those_of_c() {
    let value = 0xfedc_ba98_8765_c3a1;
    for (format, expected) in [
        ("%d", "-2023373919"),
        ("%hd", "-15455"),
        ("%hi", "-15455"),
        ("%hhd", "-95"),
        ("%u", "2271593377"),
        ("%hu", "50081"),
        ("%hhu", "161"),
        ("%x", "8765c3a1"),
        ("%hx", "c3a1"),
        ("%#hhX", "0XA1"),
        ("%ho", "141641"),
        ("%ld", "-81985528930122847"),
        ("%llx", "fedcba988765c3a1"),
        ("%zu", "18364758544779428769"),
        ("%06hhd|", "-00095|"),
    ] {
        assert_eq!(printed(format, value), expected, "{format}");
    }
}

#[test]
fn a_report_names_the_inlined_calls_of_the_kernels_own_file() {
    let text = "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry main()
{
.loc 1 40 0
.loc 1 12 5, function_name $L__info0, inlined_at 1 41 9
.loc 2 441 16, function_name $L__info1, inlined_at 1 12 5
.loc 3 531 13, function_name $L__info2, inlined_at 2 441 16
trap;
}
.file 1 \"scan.cu\"
.file 2 \"cooperative_groups.h\"
.file 3 \"details/helpers.h\"
";
    let kernel = Module::new(text).unwrap().kernel("main").unwrap();
    // SAFETY: launch needs valid memory, and the kernel has no parameters.
    let fault = unsafe { kernel.launch(&Config::linear(1, 1), &[], Memory::Regions(vec![])) }.unwrap_err();
    assert_eq!(
        fault.to_string(),
        "main failed in thread [0, 0, 0] of block [0, 0, 0] (details/helpers.h:531, called at scan.cu:12, called at \
         scan.cu:41, PTX line 10): it executed trap"
    );
    let source = fault.source.unwrap();
    assert_eq!((source.file.as_str(), source.line), ("details/helpers.h", 531));
    assert_eq!(source.called_at, [("scan.cu".to_owned(), 12), ("scan.cu".to_owned(), 41)]);
}
