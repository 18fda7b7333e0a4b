// Allocates direct buffers and gives them back, as told: for each line COUNT, so many; answers with the seconds that took.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import sun.misc.Unsafe;

public class Buffers {
    static ByteBuffer buffer(int bytes) {
        ByteBuffer buffer = ByteBuffer.allocateDirect(bytes);
        buffer.putInt(0, bytes);
        return buffer;
    }

    public static void main(String[] arguments) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        Unsafe unsafe = (Unsafe) field.get(null);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line; (line = lines.readLine()) != null;) {
            int count = Integer.parseInt(line);
            long begun = System.nanoTime();
            for (int i = 0; i < count; i++) {
                unsafe.invokeCleaner(buffer(1024 + i % 7 * 512));
            }
            System.out.println((System.nanoTime() - begun) / 1e9);
        }
    }
}
