//! The clusters that kernels and launches ask for, and the special registers that tell of them: PTX
//! ISA 11.7 and 10.

use crate::program::Program;
use warpline_ptx::{Config, Memory, Module};

#[test]
fn directives_say_how_large_clusters_are() {
    let load = |directives: &str| {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry main()\n.maxntid 32\n{directives}\n{{ ret; }}"
        );
        Module::new(text).unwrap().kernel("main")
    };
    for (directives, cluster, needs_clusters) in [
        ("", None, false),
        (".explicitcluster .reqnctapercluster 1, 1, 1", Some([1, 1, 1]), true),
        (".explicitcluster\n.reqnctapercluster 2, 3, 1", Some([2, 3, 1]), true),
        (".reqnctapercluster 4", Some([4, 1, 1]), false),
        (".explicitcluster", None, true),
        (".maxclusterrank 4", None, false),
    ] {
        let kernel = load(directives).unwrap();
        assert_eq!((kernel.cluster(), kernel.needs_clusters()), (cluster, needs_clusters), "{directives}");
    }
    let error = load(".reqnctapercluster 9").unwrap_err().to_string();
    assert_eq!(
        error,
        "line 6: main asks for clusters of [9, 1, 1] blocks (.reqnctapercluster), and a cluster has 1 to 8 here, the most \
         that all GPUs with clusters have; ask for 1 to 8"
    );
}

#[test]
fn launches_whose_clusters_do_not_fit_are_refused() {
    let kernel = |directives: &str| {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry main()\n{directives}\n{{ ret; }}"
        );
        Module::new(text).unwrap().kernel("main").unwrap()
    };
    let problem = |directives: &str, cluster: Option<[u32; 3]>| {
        let (kernel, config) = (kernel(directives), Config { cluster, ..Config::linear(6, 32) });
        // SAFETY: the kernel touches no memory.
        let run = || unsafe { kernel.launch(&config, &[], Memory::Regions(Vec::new())) }.map(drop);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        result
            .map(Result::unwrap)
            .map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
    };
    for (directives, cluster) in [
        ("", None),
        ("", Some([3, 1, 1])),
        (".explicitcluster", Some([6, 1, 1])),
        (".reqnctapercluster 2, 1, 1", None),
        (".reqnctapercluster 2, 1, 1", Some([2, 1, 1])),
    ] {
        assert_eq!(problem(directives, cluster), Ok(()), "{directives} {cluster:?}");
    }
    for (directives, cluster, expected) in [
        (
            "",
            Some([4, 1, 1]),
            "main: clusters of [4, 1, 1] blocks do not divide a grid of [6, 1, 1]; use a grid that is a multiple of them in each direction",
        ),
        (
            "",
            Some([2, 0, 1]),
            "main: clusters of [2, 0, 1] have 0 blocks, and 1 to 8 are allowed; use smaller ones",
        ),
        (
            ".maxclusterrank 2",
            Some([3, 1, 1]),
            "main: clusters of [3, 1, 1] have 3 blocks, and 1 to 2 are allowed; use smaller ones",
        ),
        (
            ".reqnctapercluster 2, 1, 1",
            Some([3, 1, 1]),
            "main is for clusters of [2, 1, 1] blocks, and the launch has clusters of [3, 1, 1]; leave them out, or change the code",
        ),
        (
            ".explicitcluster",
            None,
            "main needs a launch with clusters, and this one has none; set their size",
        ),
    ] {
        assert_eq!(problem(directives, cluster), Err(expected.to_owned()));
    }
}

#[test]
fn special_registers_tell_the_place_in_the_cluster() {
    let read = [
        "%clusterid.x",
        "%clusterid.y",
        "%clusterid.z",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_ctaid.z",
        "%nclusterid.x",
        "%nclusterid.y",
        "%nclusterid.z",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%cluster_nctaid.z",
        "%cluster_ctarank",
        "%cluster_nctarank",
    ];
    let stores: String = read
        .iter()
        .enumerate()
        .map(|(at, register)| format!("mov.u32 %r5, {register};\nst.global.u32 [%at+{}], %r5;\n", 8 * at))
        .collect();
    let body = format!(
        "mov.u32 %r2, %ctaid.z;\nmov.u32 %r3, %nctaid.y;\nmov.u32 %r4, %ctaid.y;\nmad.lo.u32 %r2, %r2, %r3, %r4;
        mov.u32 %r3, %nctaid.x;\nmov.u32 %r4, %ctaid.x;\nmad.lo.u32 %r2, %r2, %r3, %r4;
        mul.lo.u32 %r2, %r2, 120;\ncvt.u64.u32 %at, %r2;\nadd.s64 %at, %at, %out;\n{stores}
        mov.pred %p1, %is_explicit_cluster;\nselp.u32 %r5, 1, 0, %p1;\nst.global.u32 [%at+112], %r5;\nret;"
    );
    let (grid, cluster) = ([6u32, 4, 2], [3u32, 2, 1]);
    let config = Config { grid, cluster: Some(cluster), ..Config::linear(1, 1) };
    let blocks = grid.iter().product::<u32>() as usize;
    let found = Program { len: 15 * blocks, config, ..Program::new(body) }.run();
    for (block, found) in found.chunks_exact(15).enumerate() {
        let block = block as u32;
        let at = [block % 6, block / 6 % 4, block / 24];
        let of = |value: fn(u32, u32, u32) -> u32| {
            [0, 1, 2].map(|axis| value(at[axis], grid[axis], cluster[axis]))
        };
        let within = of(|at, _, size| at % size);
        let rank = within[0] + 3 * within[1] + 6 * within[2];
        let expected =
            [of(|at, _, size| at / size), within, of(|_, grid, size| grid / size), cluster, [rank, 6, 1]];
        let expected: Vec<u64> = expected.as_flattened().iter().map(|value| u64::from(*value)).collect();
        assert_eq!(found, expected, "block {at:?}");
    }
}
