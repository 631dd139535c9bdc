//! Files of weights that are refused.

use super::*;

/// Returns the error of a file with these tensors.
async fn error_of(stream: &Stream, tensors: &[(&str, Dtype, &[usize])]) -> String {
    let bytes: Vec<_> = tensors
        .iter()
        .map(|(_, dtype, shape)| vec![0_u8; shape.iter().product::<usize>() * dtype.bitsize() / 8])
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, dtype, shape), bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    let file = File::new(safetensors::serialize(views, None).unwrap());
    format!("{:#}", Network::load(&file.0, stream).await.map(drop).unwrap_err())
}

#[test]
fn the_names_types_and_shapes_of_weights_are_checked() {
    test(async {
        let runtime = Runtime::builder().build().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let right: Vec<_> = PARAMETERS.iter().map(|(name, shape)| (*name, Dtype::F32, *shape)).collect();
        let with = |at: usize, tensor| {
            let mut tensors = right.clone();
            tensors[at] = tensor;
            tensors
        };
        for (tensors, parts) in [
            (right[1..].to_vec(), ["missing: 0.weight", "unexpected: none"]),
            (with(1, ("1.bias", Dtype::F32, &[128])), ["missing: 0.bias", "unexpected: 1.bias"]),
            (
                with(0, ("0.weight", Dtype::F32, &[64, 128])),
                ["[64, 128] in the file", "[128, 64] in the module"],
            ),
            (with(3, ("2.bias", Dtype::F32, &[11])), ["2.bias has shape [11]", "[10] in the module"]),
            (with(2, ("2.weight", Dtype::F16, &[10, 128])), ["2.weight is F16", "F32 in the module"]),
        ] {
            let error = error_of(&stream, &tensors).await;
            for part in parts.iter().chain(&["cannot load", ".safetensors"]) {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
        }
        let file = File::new(Reference::new(1).safetensors());
        Network::load(&file.0, &stream).await.map(drop).unwrap();
    });
}
