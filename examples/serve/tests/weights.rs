//! Files of weights that are refused.

use super::*;

/// Returns the error of a file with these tensors.
fn error_of(tensors: &[(&str, Dtype, &[usize])]) -> String {
    let bytes: Vec<_> = tensors
        .iter()
        .map(|(_, dtype, shape)| vec![0_u8; shape.iter().product::<usize>() * dtype.bitsize() / 8])
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, dtype, shape), bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    let file = File::new(safetensors::serialize(views, None).unwrap());
    format!("{:#}", Weights::read(&file.0).unwrap_err())
}

#[test]
fn the_names_types_and_shapes_of_weights_are_checked() {
    let right: Vec<_> = PARAMETERS.iter().map(|(name, shape)| (*name, Dtype::F32, *shape)).collect();
    let with = |at: usize, tensor| {
        let mut tensors = right.clone();
        tensors[at] = tensor;
        error_of(&tensors)
    };
    for (error, parts) in [
        (error_of(&right[1..]), ["no tensor \"0.weight\"", "0.weight, 0.bias, 2.weight, 2.bias"]),
        (with(1, ("1.bias", Dtype::F32, &[128])), ["a tensor \"1.bias\"", "2.weight, 2.bias alone"]),
        (with(0, ("0.weight", Dtype::F32, &[64, 128])), ["[64, 128]", "[128, 64] is expected"]),
        (with(3, ("2.bias", Dtype::F32, &[11])), ["\"2.bias\" has the shape [11]", "[10] is expected"]),
        (with(2, ("2.weight", Dtype::F16, &[10, 128])), ["of type F16", "F32 is expected"]),
    ] {
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
    let file = File::new(Reference::new(1).safetensors());
    Weights::read(&file.0).unwrap();
}
