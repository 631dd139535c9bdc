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
}
