//! The ops of neural networks.

use super::*;

ops! {
    40 cases each;
    exp: |inputs, device| one(tensor(&inputs[0], device)?.exp());
    log: |inputs, device| one(tensor(&inputs[0], device)?.log());
    sqrt: |inputs, device| one(tensor(&inputs[0], device)?.sqrt());
    tanh: |inputs, device| one(tensor(&inputs[0], device)?.tanh());
    sigmoid: |inputs, device| one(tensor(&inputs[0], device)?.sigmoid());
    gelu: |inputs, device| one(tensor(&inputs[0], device)?.gelu());
    softmax: |inputs, device| one(tensor(&inputs[0], device)?.softmax(integer(&inputs[1])));
    max: |inputs, device| one(tensor(&inputs[0], device)?.max());
    max_dim: |inputs, device| {
        let (values, indices) = tensor(&inputs[0], device)?.max_dim(integer(&inputs[1])).queued()?;
        Ok(vec![values, indices])
    };
    layer_norm: |inputs, device| {
        let [x, weight, bias] = tensors(&inputs[..3], device)?;
        one(x.layer_norm(&weight, &bias, number(&inputs[3])))
    };
}
