# SPDX-License-Identifier: Apache-2.0
"""Memory and index arrays of all kinds: buffer protocol, DLPack, torch tensors, pointer and size."""

import array
import ctypes
import gc
import unittest
import weakref

import kvonce
from package_parts import Case, Setup, optional, pages, rows_of

numpy = optional("numpy")
torch = optional("torch")


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", DELETER)]
NAME = b"dltensor"


class DlpackArray:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, memory, shape, strides, code, bits, device=1):
        self.memory, self.device, self.deleted = memory, device, 0
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides)
        self.address = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
        tensor = DLTensor(self.address, device, 0, len(shape), DLDataType(code, bits, 1), self.shape, self.strides, 0)
        self.managed = DLManagedTensor(tensor, None, DELETER(self.delete))

    def delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), NAME, None)


class Memory(Case):
    def register(self, kv, layers, **more):
        """In a namespace of its own: a pool's size is the same for all of one namespace."""
        kv.group = kv.runtime.namespace("other memory").group("main", [kvonce.GroupPool("kv", (1, 1, 1))])
        kv.rank = kv.group.rank()
        return kv.rank.register_pool("kv", [kvonce.Component("kv", layers)], shard=0, **more)

    def round_trip(self, kv, pool, read):
        """Puts two rows, loads them into two others; `read(row)` gives a row's bytes."""
        result = kv.rank.put(pages(2), {pool: [0, 1]}).result()
        self.assertTrue(result.ok, result.causes())
        lease = kv.group.lookup(pages(2)).lease
        self.assertTrue(kv.rank.load(lease, pages(2), {pool: [3, 2]}).result().ok)
        self.assertEqual(read(3), read(0))
        self.assertEqual(read(2), read(1))
        self.assertNotEqual(read(0), read(1))

    def test_pointer_and_sizes(self):
        with Setup(layers=1) as kv:
            memory = bytearray(b"".join(bytes([row]) * 8192 for row in range(8)))
            address = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
            # 4,096 bytes of each row of 8,192 belong to the object.
            pool = self.register(kv, [kvonce.Layer(address, 8192, 4096)], rows=8)
            self.assertEqual((pool.rows, pool.object_bytes), (8, 4096))
            self.round_trip(kv, pool, lambda row: bytes(memory[row * 8192 : row * 8192 + 4096]))
            self.assertEqual(memory[3 * 8192 + 4096], 3)

    def test_rows_must_be_told_where_nobody_knows(self):
        with Setup() as kv, self.assertRaisesRegex(kvonce.BadArgument, "rows must be given"):
            self.register(kv, [kvonce.Layer(4096, 16, 16)])

    def test_layers_of_other_lengths(self):
        with Setup() as kv, self.assertRaisesRegex(kvonce.BadArgument, "layer 1 has 3 rows"):
            self.register(kv, [rows_of(4)[1], rows_of(3)[1]])

    def test_fewer_rows_than_there_are(self):
        with Setup() as kv:
            self.assertEqual(self.register(kv, [rows_of(4)[1], rows_of(3)[1]], rows=3).rows, 3)

    def test_dlpack(self):
        with Setup(layers=1) as kv:
            memory = bytearray(b"".join(bytes([row]) * 4096 for row in range(4)))
            given = DlpackArray(memory, (4, 1024), (1024, 1), 2, 32)
            pool = self.register(kv, [given])
            self.assertEqual((pool.rows, pool.object_bytes), (4, 4096))
            self.round_trip(kv, pool, lambda row: bytes(memory[row * 4096 : (row + 1) * 4096]))
            self.assertEqual(given.deleted, 0)
            pool.unregister()
            self.assertEqual(given.deleted, 1)

    def test_dlpack_on_a_device_is_refused(self):
        with Setup() as kv, self.assertRaisesRegex(kvonce.BadArgument, "lies on a device"):
            self.register(kv, [DlpackArray(bytearray(64), (4, 16), (16, 1), 1, 8, device=2)])

    def test_memory_that_is_read_only_or_scattered_is_refused(self):
        cases = [
            (bytes(64), "is read-only"),
            (memoryview(bytearray(64)).cast("B", (4, 16)).toreadonly(), "is read-only"),
            (7, "is a int"),
            (DlpackArray(bytearray(64), (4, 8), (16, 2), 1, 8), "not contiguous"),
            (DlpackArray(bytearray(64), (4, 16), (8, 1), 1, 8), "must not overlap"),
            (ctypes.c_int.from_buffer(bytearray(8)), "has no axis"),
        ]
        with Setup() as kv:
            for layer, text in cases:
                with self.subTest(text), self.assertRaisesRegex(kvonce.BadArgument, text):
                    self.register(kv, [layer])

    def test_memory_stays_referenced_until_the_pool_is_unregistered(self):
        class Memory(bytearray):
            pass

        with Setup() as kv:
            memory = Memory(64)
            gone = weakref.ref(memory)
            pool = self.register(kv, [memoryview(memory).cast("B", (4, 16))])
            with self.assertRaises(BufferError):
                memory.append(0)
            del memory
            gc.collect()
            self.assertIsNotNone(gone())
            pool.unregister()
            gc.collect()
            self.assertIsNone(gone())

    def test_memory_stays_while_rows_are_lent(self):
        with Setup() as kv:
            put, event = kv.waiting_put()
            with self.assertRaises(kvonce.Deadline):
                kv.pool.unregister(0.06)
            with self.assertRaises(BufferError):
                kv.memory[0].append(0)
            event.signal()
            kv.pool.unregister()
            kv.memory[0].append(0)

    def test_memory_is_let_go_with_the_rank(self):
        kv = Setup()
        memory = kv.memory[0]
        with self.assertRaises(BufferError):
            memory.append(0)
        del kv
        gc.collect()
        memory.append(0)

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        with Setup(layers=1) as kv:
            # (rows, heads, dim) inside of something larger: rows lie further apart than they are long.
            whole = numpy.arange(4 * 2 * 8 * 16, dtype=numpy.float32).reshape(4, 2, 8, 16)
            pool = self.register(kv, [whole[:, 0]])
            self.assertEqual(pool.object_bytes, 8 * 16 * 4)
            self.round_trip(kv, pool, lambda row: whole[row, 0].tobytes())
            with self.assertRaisesRegex(kvonce.BadArgument, "not contiguous"):
                kv.rank.register_pool("kv", [kvonce.Component("kv", [whole[:, :, 0]])], shard=0)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float32):
            with self.subTest(str(dtype)), Setup(layers=1) as kv:
                tensor = torch.arange(4 * 64).reshape(4, 2, 32).to(torch.float32).to(dtype)
                pool = self.register(kv, [tensor])
                self.assertEqual(pool.object_bytes, 64 * tensor.element_size())
                self.round_trip(kv, pool, lambda row, t=tensor: t[row].view(torch.uint8).numpy().tobytes())


class Indices(Case):
    def assert_read(self, indices, expected=(3, 1, 0, 2), unit=1):
        """`indices` name the rows `expected` of four pages."""
        with Setup(layers=1, unit=unit) as kv:
            for row in range(4):
                kv.fill(row, f"row {row}")
            self.assertTrue(kv.rank.put(pages(4), {kv.pool: indices}).result().ok)
            lease = kv.group.lookup(pages(4)).lease
            into = range(8 * unit, 12 * unit)
            self.assertTrue(kv.rank.load(lease, pages(4), {kv.pool: into}).result().ok)
            self.assertEqual([kv.bytes_of(8 + page) for page in range(4)], [kv.bytes_of(row) for row in expected])

    def test_lists_tuples_and_ranges(self):
        self.assert_read([3, 1, 0, 2])
        self.assert_read((3, 1, 0, 2))
        self.assert_read(range(3, -1, -1), (3, 2, 1, 0))

    def test_arrays_of_all_integer_types(self):
        for code in "bBhHiIlLqQ":
            with self.subTest(code):
                self.assert_read(array.array(code, [3, 1, 0, 2]))

    def test_arrays_of_ctypes_which_tell_no_strides(self):
        self.assert_read((ctypes.c_int32 * 4)(3, 1, 0, 2))
        table = (ctypes.c_char * 16 * 4)()
        with Setup() as kv, self.assertRaisesRegex(kvonce.BadArgument, "has 2 axes"):
            kv.rank.put(pages(4), {kv.pool: (ctypes.c_int8 * 1 * 4)()})
        with Setup() as kv:
            group = kv.runtime.namespace("ctypes").group("main", [kvonce.GroupPool("kv", (1, 1, 1))])
            pool = group.rank().register_pool("kv", [kvonce.Component("kv", [table])], shard=0)
            self.assertEqual((pool.rows, pool.object_bytes), (4, 16))

    def test_a_stride(self):
        self.assert_read(memoryview(array.array("q", [3, 99, 1, 99, 0, 99, 2, 99]))[::2])
        self.assert_read(memoryview(array.array("q", [2, 0, 1, 3]))[::-1])

    def test_dlpack(self):
        memory = bytearray(array.array("i", [3, 99, 1, 99, 0, 99, 2, 99]).tobytes())
        self.assert_read(DlpackArray(memory, (4,), (2,), 0, 32))

    def test_a_page_without_a_row(self):
        with Setup() as kv:
            put = kv.rank.put(pages(3), {kv.pool: array.array("i", [0, -1, 2])}).result()
            self.assertEqual((put.items, put.succeeded, put.verdicts(kv.pool)[1]), (2, 2, 0))

    def test_token_slots(self):
        slots = [slot for row in (3, 1, 0, 2) for slot in range(row * 16, row * 16 + 16)]
        self.assert_read(array.array("q", slots), unit=16)
        self.assert_read(slots, unit=16)

    def test_what_is_no_index_array(self):
        table = memoryview(bytearray(16)).cast("B", (4, 4))
        cases = [(array.array("d", [0, 1]), "no array of integers"), (table, "has 2 axes"), (array.array("i", [1]), "has 1 entries")]
        cases += [(["a", 1], "entry 0 is 'a': must be an integer"), ([1 << 70, 0], "entry 0 is 1180591620717411303424"), (3.5, "is a float")]
        with Setup() as kv:
            for rows, text in cases:
                with self.subTest(text), self.assertRaisesRegex(kvonce.BadArgument, text):
                    kv.rank.put(pages(2), {kv.pool: rows})

    def test_what_kind_of_items_is_refused_is_told(self):
        double, swapped = array.array("d", [0, 1]), ctypes.c_int32.__ctype_be__ * 2
        with Setup() as kv:
            for rows, kind in ((double, "'d'"), (swapped(0, 1), "'>i'"), (memoryview(bytes(2)).cast("?"), "'?'"), (DlpackArray(bytearray(8), (2,), (1,), 2, 32), "code 2 and 32 bits")):
                with self.subTest(kind), self.assertRaises(kvonce.BadArgument) as caught:
                    kv.rank.put(pages(2), {kv.pool: rows})
                self.assertIn("rows of pool 'kv' is no array of integers", caught.exception.text)
                self.assertIn(kind, caught.exception.text)

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy_forms_that_are_read_right_or_refused(self):
        self.assert_read(numpy.array([3, 1, 0, 2], dtype=numpy.int8))
        self.assert_read(numpy.array([2, 0, 1, 3], dtype=numpy.uint8)[::-1])
        self.assert_read(numpy.array([3, 1, 0, 2], dtype="<i4"))
        refused = [(numpy.zeros(2, dtype=dtype), "no array of integers") for dtype in ("f4", "f8", ">i4", ">i8", "bool", "complex64", "object")]
        refused += [(numpy.zeros((2, 1), dtype="i4"), "has 2 axes"), (numpy.array(1), "has 0 axes"), (numpy.zeros(3, dtype="i4"), "has 3 entries")]
        with Setup() as kv:
            for rows, text in refused:
                with self.subTest(str(rows.dtype), shape=rows.shape), self.assertRaisesRegex(kvonce.BadArgument, text):
                    kv.rank.put(pages(2), {kv.pool: rows})
            put = kv.rank.put(pages(2), {kv.pool: numpy.array([-128, 1], dtype=numpy.int8)}).result()
            self.assertEqual((put.items, put.succeeded), (1, 1))
            table = numpy.frombuffer(b"".join(pages(2)), dtype=numpy.uint8).reshape(2, 32)
            for wrong in (table.astype(numpy.float32), table.astype(numpy.int16), table.reshape(4, 16), table.T, table.reshape(2, 2, 16)):
                with self.subTest(str(wrong.dtype), shape=wrong.shape), self.assertRaisesRegex(kvonce.BadArgument, "pages are an array of"):
                    kv.rank.put(wrong, {kv.pool: range(2)})

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch_forms_that_are_read_right_or_refused(self):
        self.assert_read(torch.tensor([3, 1, 0, 2], dtype=torch.int8))
        self.assert_read(torch.tensor([3, 9, 1, 9, 0, 9, 2, 9], dtype=torch.int16)[::2])
        refused = [(torch.zeros(2, dtype=dtype), "no array of integers.*" + str(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.bool)]
        refused += [(torch.zeros((2, 1), dtype=torch.int32), "has 2 axes"), (torch.tensor(1), "has 0 axes")]
        with Setup() as kv:
            for rows, text in refused:
                with self.subTest(str(rows.dtype), shape=rows.shape), self.assertRaisesRegex(kvonce.BadArgument, text):
                    kv.rank.put(pages(2), {kv.pool: rows})
            table = torch.frombuffer(bytearray(b"".join(pages(2))), dtype=torch.uint8).reshape(2, 32)
            for wrong in (table.float(), table.to(torch.int64), table.T, table.reshape(2, 2, 16)):
                with self.subTest(str(wrong.dtype), shape=wrong.shape), self.assertRaisesRegex(kvonce.BadArgument, "pages are an array of"):
                    kv.rank.put(wrong, {kv.pool: range(2)})

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        for dtype in (numpy.int32, numpy.int64, numpy.uint32, numpy.intp):
            self.assert_read(numpy.array([3, 1, 0, 2], dtype=dtype))
        self.assert_read(numpy.array([[3, 9], [1, 9], [0, 9], [2, 9]])[:, 0])
        self.assert_read([numpy.int64(3), 1, 0, 2])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        for dtype in (torch.int32, torch.int64):
            self.assert_read(torch.tensor([3, 1, 0, 2], dtype=dtype))
        self.assert_read(torch.tensor([[3, 9], [1, 9], [0, 9], [2, 9]])[:, 0])
        with Setup() as kv, self.assertRaisesRegex(kvonce.BadArgument, "no array of integers"):
            kv.rank.put(pages(2), {kv.pool: torch.tensor([0.0, 1.0])})


class Pages(Case):
    def test_all_forms_name_the_same_pages(self):
        whole = b"".join(pages(4))
        forms = [whole, bytearray(whole), memoryview(whole).cast("B", (4, 32)), pages(4), tuple(pages(4)), [p.hex() for p in pages(4)]]
        forms += [[bytearray(p) for p in pages(4)], DlpackArray(bytearray(whole), (4, 32), (32, 1), 1, 8)]
        forms.append(DlpackArray(bytearray(b"".join(p + bytes(8) for p in pages(4))), (4, 32), (40, 1), 1, 8))
        if numpy is not None:
            forms.append(numpy.frombuffer(whole, dtype=numpy.uint8).reshape(4, 32))
        if torch is not None:
            forms.append(torch.frombuffer(bytearray(whole), dtype=torch.uint8).reshape(4, 32))
        with Setup() as kv:
            kv.put(4).result()
            for form in forms:
                with self.subTest(type(form).__name__):
                    self.assertEqual(kv.group.exists("kv", 0, form), b"\1\1\1\1")


if __name__ == "__main__":
    unittest.main()
