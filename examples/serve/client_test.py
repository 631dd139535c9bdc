"""Drives the service by NVIDIA's client, and compares its answers with numpy's.

    pip install 'tritonclient[http]==2.73.0'
    python client_test.py --write digits.safetensors # or train the network: see main.rs
    cargo run -p warpline-examples --features serve --example serve -- --model digits.safetensors
    python client_test.py 127.0.0.1:8080 digits.safetensors # in another terminal

The test replaces the file by other weights, has them loaded, and restores the file.
"""

import json
import sys

import numpy as np
import tritonclient.http as client
from tritonclient.utils import InferenceServerException

SHAPES = {"0.weight": (128, 64), "0.bias": (128,), "2.weight": (10, 128), "2.bias": (10,)}


def random_weights(seed):
    numbers = np.random.default_rng(seed)
    return {name: numbers.uniform(-0.2, 0.2, shape).astype("<f4") for name, shape in SHAPES.items()}


def write(path, weights):
    """Writes a file of safetensors: the length of the JSON, the JSON, and the tensors."""
    header, end = {}, 0
    for name, values in weights.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(b"".join(values.tobytes() for values in weights.values()))


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    weights = {}
    for name, shape in SHAPES.items():
        begin, end = header[name]["data_offsets"]
        weights[name] = np.frombuffer(data[begin:end], "<f4").reshape(shape)
    return weights


def forward(weights, pixels):
    hidden = np.maximum(pixels / np.float32(16) @ weights["0.weight"].T + weights["0.bias"], 0)
    return hidden @ weights["2.weight"].T + weights["2.bias"]


def images(rows, seed):
    return np.random.default_rng(seed).integers(0, 17, (rows, 64)).astype(np.float32)


def an_input(pixels, binary=True):
    an_input = client.InferInput("pixels", list(pixels.shape), "FP32")
    return an_input.set_data_from_numpy(pixels, binary_data=binary)


def outputs(binary):
    return [client.InferRequestedOutput(name, binary_data=binary) for name in ("logits", "digit")]


def is_by(weights, result, pixels):
    """Checks the outputs of a result."""
    expected, logits, digit = forward(weights, pixels), result.as_numpy("logits"), result.as_numpy("digit")
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert logits.dtype == np.float32 and digit.dtype == np.int64
    np.testing.assert_array_equal(digit, logits.argmax(axis=1))


def refuses(status, part, call):
    """Checks that a call raises an error with this status and a reason that has this part."""
    try:
        call()
    except InferenceServerException as error:
        assert error.status() == str(status), f"{error.status()}, and {status} is expected: {error}"
        assert part in error.message(), f"{part!r} is not in {error.message()!r}"
    else:
        raise AssertionError(f"it was not refused: {part}")


class Tests:
    def __init__(self, address, path):
        self.service = client.InferenceServerClient(address, concurrency=32)
        self.path, self.weights = path, read(path)

    def infer(self, pixels=images(1, 0), **options):
        return self.service.infer("digits", [an_input(pixels)], **options)

    def test_health_and_metadata(self):
        service = self.service
        assert service.is_server_live() and service.is_server_ready()
        assert service.is_model_ready("digits") and not service.is_model_ready("faces")
        server, model = service.get_server_metadata(), service.get_model_metadata("digits")
        assert "binary_tensor_data" in server["extensions"], server
        version = model["versions"][0]
        assert service.is_model_ready("digits", version)
        assert service.get_model_metadata("digits", version) == model
        assert model["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 64]}]
        assert model["outputs"] == [
            {"name": "logits", "datatype": "FP32", "shape": [-1, 10]},
            {"name": "digit", "datatype": "INT64", "shape": [-1]},
        ]
        index = service.get_model_repository_index()
        assert index == [{"name": "digits", "version": version, "state": "READY", "reason": ""}], index

    def test_every_form_of_tensors(self):
        for rows in (1, 5, 200):
            pixels = images(rows, rows)
            for binary_in in (True, False):
                for wanted in (None, outputs(True), outputs(False)):
                    result = self.service.infer("digits", [an_input(pixels, binary_in)], outputs=wanted)
                    is_by(self.weights, result, pixels)
                    sizes = result.get_response()["parameters"]["batch_rows"].split(",")
                    assert len(sizes) == rows and all(int(size) >= 1 for size in sizes)
        only = [client.InferRequestedOutput("digit")]
        result = self.infer(pixels[:1], outputs=only)
        assert result.as_numpy("logits") is None
        np.testing.assert_array_equal(result.as_numpy("digit"), forward(self.weights, pixels[:1]).argmax(1))

    def test_200_requests_at_once(self):
        calls = []
        for number in range(200):
            pixels = images(1, number)
            call = self.service.async_infer("digits", [an_input(pixels)], request_id=str(number))
            calls.append((number, pixels, call))
        shared = 0
        for number, pixels, call in calls:
            result = call.get_result()
            is_by(self.weights, result, pixels)
            assert result.get_response()["id"] == str(number)
            shared += result.get_response()["parameters"]["batch_rows"] != "1"
        print(f"    {shared} of 200 requests shared a batch")

    def test_ids(self):
        assert self.infer(request_id="mine").get_response()["id"] == "mine"
        assert "id" not in self.infer().get_response()

    def test_deadlines(self):
        refuses(504, "before the deadline", lambda: self.infer(headers={"deadline-ms": "0"}))
        refuses(504, "before the deadline", lambda: self.infer(timeout=1))
        is_by(self.weights, self.infer(timeout=60_000_000), images(1, 0))

    def test_compression(self):
        for how in ("gzip", "deflate"):
            refuses(415, how, lambda: self.infer(request_compression_algorithm=how))
            # A response need not be compressed.
            is_by(self.weights, self.infer(response_compression_algorithm=how), images(1, 0))

    def test_shared_memory(self):
        service = self.service
        region = client.InferInput("pixels", [1, 64], "FP32")
        region.set_shared_memory("region", 256)
        refuses(400, "shared memory is not", lambda: service.infer("digits", [region]))
        output = client.InferRequestedOutput("logits")
        output.set_shared_memory("region", 40)
        refuses(400, "shared memory is not", lambda: self.infer(outputs=[output]))
        for call in (
            lambda: service.register_system_shared_memory("region", "/region", 256),
            lambda: service.register_cuda_shared_memory("region", b"handle", 0, 256),
            service.get_system_shared_memory_status,
            service.get_cuda_shared_memory_status,
            service.unregister_system_shared_memory,
            lambda: service.unregister_cuda_shared_memory("region"),
        ):
            refuses(501, "no shared memory", call)

    def test_other_extensions(self):
        service = self.service
        refuses(501, "no model configuration", lambda: service.get_model_config("digits"))
        refuses(501, "no statistics", lambda: service.get_inference_statistics("digits"))
        refuses(501, "no statistics", service.get_inference_statistics)
        refuses(501, "no trace", service.get_trace_settings)
        refuses(501, "no trace", lambda: service.update_trace_settings("digits", {"trace_rate": "1"}))
        refuses(501, "no log", service.get_log_settings)
        refuses(501, "no log", lambda: service.update_log_settings({"log_info": True}))
        refuses(400, "sequence_id", lambda: self.infer(sequence_id=7))
        refuses(400, "priority", lambda: self.infer(priority=1))
        refuses(400, "temperature", lambda: self.infer(parameters={"temperature": 1}))
        top = [client.InferRequestedOutput("logits", class_count=3)]
        refuses(400, "classification", lambda: self.infer(outputs=top))
        refuses(400, "only model", lambda: service.unload_model("digits"))
        refuses(400, "config", lambda: service.load_model("digits", config="{}"))

    def test_mistakes(self):
        infer = self.service.infer
        refuses(400, "[1, 63]", lambda: self.infer(np.zeros((1, 63), np.float32)))
        refuses(400, "[64]", lambda: self.infer(np.zeros(64, np.float32)))
        refuses(400, "at most", lambda: self.infer(np.zeros((2000, 64), np.float32)))
        refuses(413, "split the request", lambda: self.infer(np.zeros((5000, 64), np.float32)))
        refuses(400, "pixel 0 of row 0 is 17", lambda: self.infer(np.full((1, 64), 17, np.float32)))
        refuses(400, "is NaN", lambda: self.infer(np.full((1, 64), np.nan, np.float32)))
        double = client.InferInput("pixels", [1, 64], "FP64").set_data_from_numpy(np.zeros((1, 64)))
        refuses(400, "FP64", lambda: infer("digits", [double]))
        other = client.InferInput("image", [1, 64], "FP32").set_data_from_numpy(images(1, 0))
        refuses(400, '"image"', lambda: infer("digits", [other]))
        refuses(400, "2 inputs", lambda: infer("digits", [an_input(images(1, 0))] * 2))
        unknown = [client.InferRequestedOutput("probability")]
        refuses(400, '"probability"', lambda: self.infer(outputs=unknown))
        refuses(404, '"faces"', lambda: infer("faces", [an_input(images(1, 0))]))
        refuses(404, '"999"', lambda: self.infer(model_version="999"))

    def test_models_are_swapped_under_load(self):
        with open(self.path, "rb") as file:
            original = file.read()
        first = int(self.service.get_model_metadata("digits")["versions"][0])
        by_version, pixels, calls = {first: self.weights}, images(3, 5), []
        ask = lambda: self.service.async_infer("digits", [an_input(pixels)])
        try:
            for version in range(first + 1, first + 5):
                calls += [ask() for _ in range(20)]
                by_version[version] = random_weights(version)
                write(self.path, by_version[version])
                self.service.load_model("digits")
                result = self.infer(pixels)
                assert result.get_response()["model_version"] == str(version)
                is_by(by_version[version], result, pixels)
            calls += [ask() for _ in range(20)]
            seen = set()
            for call in calls:
                result = call.get_result()
                version = int(result.get_response()["model_version"])
                is_by(by_version[version], result, pixels)
                seen.add(version)
            print(f"    100 answers by the versions {sorted(seen)}")
            refuses(404, f'"{first}"', lambda: self.infer(model_version=str(first)))
            with open(self.path, "wb") as file:
                file.write(b"no weights")
            refuses(400, f"version {first + 4} stays", lambda: self.service.load_model("digits"))
            is_by(by_version[first + 4], self.infer(pixels), pixels)
        finally:
            with open(self.path, "wb") as file:
                file.write(original)
        self.service.load_model("digits")
        is_by(self.weights, self.infer(pixels), pixels)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: client_test.py --write FILE | client_test.py HOST:PORT FILE")
    if sys.argv[1] == "--write":
        return write(sys.argv[2], random_weights(1))
    tests = Tests(sys.argv[1], sys.argv[2])
    names = [name for name in dir(tests) if name.startswith("test_")]
    for name in names:
        print(name)
        getattr(tests, name)()
    print(f"{len(names)} tests passed")


if __name__ == "__main__":
    main()
